"""The charts of the leaderboard, one file each."""
