"""Retry history on Spark: which tiers fit the failures. Needs the extra ``spark``."""
