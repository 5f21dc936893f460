"""Built-in methods, one file each."""
