"""Decisions about messages: pure functions, without I/O and without a clock.

May import `settings` and what is below it.
"""
