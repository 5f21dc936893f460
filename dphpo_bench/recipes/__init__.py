"""Common kinds of methods and tasks, ready to be filled in."""
