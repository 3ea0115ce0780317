"""Decisions about messages: pure functions, without I/O and without a clock."""
