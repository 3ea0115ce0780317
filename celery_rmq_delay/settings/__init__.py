"""The settings of an app: parsed once, validated in one place.

May import `topology` and what is below it.
"""
