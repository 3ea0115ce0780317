"""Uninstall: returns all waiting messages to their queues, then deletes the objects of this package.

May import `operations` and what is below it.
"""
