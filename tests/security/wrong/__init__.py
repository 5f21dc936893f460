"""Plug-ins that each break one rule of their contract: what the contracts are tested with."""
