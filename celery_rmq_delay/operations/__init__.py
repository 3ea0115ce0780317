"""What operators do and look at: one function per action.

May import `worker`, `management` and what is below them.
"""
