"""Topologies for exact delays: one module each, and a registry of names.

May import `topology` and what is below it.
"""
