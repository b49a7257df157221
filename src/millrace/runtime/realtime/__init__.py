"""The real-time plane: tasks that run for hours, and what they say to one another.

Source: docs/design/2026-11-22-the-real-time-plane.md; MillWheel 6.1 and 7.2.
"""
