"""Attacks on runs, and the lower bounds on ε that they prove."""
