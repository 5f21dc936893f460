"""What plug-ins promise: methods, tasks, search spaces; and how they are found."""
