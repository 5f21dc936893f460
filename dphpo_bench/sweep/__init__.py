"""Sweeps: methods × tasks × ε × seeds, on one machine or a cluster.

A suite (`suite`) names cells (`cells`). The driver (`driver`) hands those without a record to an executor
(`executors`, `ray_executor`), each in a process of its own (`processes`), and writes their records.
"""
