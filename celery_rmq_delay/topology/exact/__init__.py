"""Topologies for exact delays: one module each, and a registry of names."""
