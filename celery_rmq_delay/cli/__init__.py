"""The `rmq-delay` command of Celery: options in, one operation, text out.

May import `operations` and what is below it.
"""
