"""A run of the pipeline: what it is asked for, what it computes, and its report."""
