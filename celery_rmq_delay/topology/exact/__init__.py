"""Topologies for exact delays, and a registry of their names."""
