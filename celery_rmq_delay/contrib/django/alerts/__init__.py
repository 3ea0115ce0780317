"""Alerts by mail and webhook: what they say, when they are sent, and how."""
