"""What any room may use; imports nothing of ours."""
