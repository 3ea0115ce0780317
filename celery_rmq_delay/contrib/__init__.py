"""Integrations: each folder is named after the package that it needs."""
