"""The leaderboard: records from strangers in, tables and plots out; the same records give the same bytes."""
