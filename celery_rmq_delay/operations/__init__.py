"""Actions of operators: one function per action.

May import `worker`, `management` and what is below them.
"""
