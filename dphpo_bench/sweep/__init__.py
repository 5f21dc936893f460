"""Sweeps: methods × tasks × ε × seeds, on one machine or a cluster."""
