"""Analyse the retry history on Spark and find the tiers that fit the failures. Needs the extra ``spark``."""
