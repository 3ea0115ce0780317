"""Alerts by mail and webhook: their texts, when they are sent, and how."""
