"""Methods that are wrong on purpose, each in one way, and what catches each: see `test_mutants`.

What a mutant does through the public API stands in this folder. What it does with the private attributes of a
session, which Python cannot forbid, stands in `around.py`. `baseline` holds the same methods with nothing wrong.
"""
