"""Calls with a delay and retries as new messages, published into delay queues.

May import `events` and what is below it.
"""
