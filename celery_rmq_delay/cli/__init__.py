"""The command `celery rmq-delay`: options in, one call of an operation, text out.

May import `operations` and what is below it.
"""
