"""One module for each table that a run writes, and what they are made of.

May import `storage`, `estimate`.
"""
