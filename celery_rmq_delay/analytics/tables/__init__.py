"""The tables that a run writes, one module each, and their common parts."""
