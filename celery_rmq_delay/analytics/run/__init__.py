"""A run of the pipeline: its request, its steps, its report."""
