"""Zeitgeist, the running example of the MillWheel paper, over a year of real flights.

Read `model` for the statistics, `computations` for figures 1, 2 and 9 of the paper, `pipeline` for
how they are wired, and `flights` for what goes in. `demo` runs it all.
"""
