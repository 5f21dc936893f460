"""Mutants that go around the session: honest in the ledger, wrong in what they release.

Each repeats by private attributes what a mutant of the same name is refused through the session, where its docstring
says where that is seen. The contract's scan of the source catches all of them; the audit shows the larger leaks.
"""
