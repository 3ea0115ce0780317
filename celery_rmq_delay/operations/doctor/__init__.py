"""The diagnosis of what keeps retries from being parked.

May import what `operations` may.
"""
