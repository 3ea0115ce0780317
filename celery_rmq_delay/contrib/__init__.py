"""What belongs to other packages: each module imports the one it is named after.

May import `operations`, `history` and the package each is named after.
"""
