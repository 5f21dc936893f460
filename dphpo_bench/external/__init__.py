"""Training code of the caller: what it declares is accounted, marked as declared, and counted."""
