"""Alerts by mail and webhook: their texts, when they are sent, and how.

May import `models`, `services` and what is below them.
"""
