"""The real-time plane on Spark: tasks of all levels run at once, in one query that does not end.

Spark gives tasks, slots and the way from one level to the next (its Real-time Mode). What the tasks
do is :mod:`millrace.runtime.realtime`; here is what hosts them.

Source: docs/design/2026-11-22-the-real-time-plane.md.
"""
