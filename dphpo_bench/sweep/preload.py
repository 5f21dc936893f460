"""Imports of the modules that runs need, done once by the server that forks their processes.

Threads and devices would not survive the fork, so only hashes are computed here, and plug-ins of others are not
imported.
"""
# ruff: noqa: F401

import gc
import importlib
import pkgutil

import optuna
import scipy.signal
import scipy.stats
import sklearn.datasets
import sklearn.metrics
import torch
import torch.func

import dphpo_bench.recipes.array_task
import dphpo_bench.recipes.probed_training
import dphpo_bench.recipes.search_method
import dphpo_bench.recipes.single_run
import dphpo_bench.session.access
import dphpo_bench.session.batch
import dphpo_bench.session.sealed
import dphpo_bench.session.session
import dphpo_bench.sweep.cells
import dphpo_bench.training.gradients
import dphpo_bench.training.linear
import dphpo_bench.training.optimizers
from dphpo_bench.base.files import engine_hash
from dphpo_bench.contract.registry import GROUPS, points

for package in ("dphpo_bench.methods", "dphpo_bench.tasks"):
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)

# Read from disk once: hashes of this package's source, and the entry points of all that is installed.
engine_hash()
engine_hash("privacy", "base")
for group in GROUPS:
    points(group)

# The collector of a forked process would otherwise walk over all of these objects, which copies their memory.
gc.freeze()
