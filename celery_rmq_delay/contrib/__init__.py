"""Integrations: each folder is named after the package that it needs.

May import `operations`, `history` and that package.
"""
