"""Benchmarks, to be run manually, never as timed tests."""
