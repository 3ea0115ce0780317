"""Topologies for exact delays: one module each, and a registry of their names.

May import `topology` and what is below it.
"""
