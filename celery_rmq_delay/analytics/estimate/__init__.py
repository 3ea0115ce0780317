"""The estimate: how failures end over time, and the ladder that fits. Pure Python and NumPy."""
