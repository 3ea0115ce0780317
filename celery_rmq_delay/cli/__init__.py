"""The command `celery rmq-delay`: parses options, calls one operation and prints its result.

May import `operations` and what is below it.
"""
