"""Moves waiting messages from one way of delaying to another.

May import `operations` and what is below it.
"""
