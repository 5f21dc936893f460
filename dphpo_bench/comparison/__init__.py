"""Methods side by side on one task, from Python: runs, a table, a drawing, a board."""
