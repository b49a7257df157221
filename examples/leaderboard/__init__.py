"""A mobile game's leaderboard, in four steps: scores, totals, leaderboard, sessions.

The text to it is `docs/tutorial.md`.
"""
