"""What becomes of a message: pure functions, without I/O and without a clock.

May import `settings` and what is below it.
"""
