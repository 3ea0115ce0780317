"""Retry history on Spark: which tiers fit the failures. Needs the extra ``spark``.

May import `events`, `history`, Spark.
"""
