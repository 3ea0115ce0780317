"""Benchmarks: run by hand, never as timed tests."""
