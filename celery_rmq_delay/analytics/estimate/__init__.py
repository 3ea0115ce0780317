"""Estimate how long failures last, and find the ladder that fits. Pure Python and NumPy."""
