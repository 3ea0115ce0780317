"""How failures end over time, and the ladder that fits. Pure Python and NumPy.

May import the modules at the top of the package.
"""
