"""A run of the pipeline: its request, its steps, its report.

May import `tables` and what is below it.
"""
