"""What becomes of a message: pure functions, without I/O and without a clock.

Imports exceptions, headers, names, ladders, topology and what is known of the broker; the task and the worker ask it.
"""
