"""Built-in tasks, one file each."""
