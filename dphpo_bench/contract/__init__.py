"""Contracts of plug-ins: methods, tasks, search spaces; the registry that finds them."""
