"""Uninstall: returns all waiting messages to their queues, then deletes the objects of this package."""
