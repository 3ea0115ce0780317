"""Migration: moves waiting messages to other delay queues.

May import `operations` and what is below it.
"""
