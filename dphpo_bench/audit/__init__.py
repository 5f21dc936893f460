"""What an attacker finds out about a run, and what that proves."""
