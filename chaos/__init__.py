"""Inject faults into a system under load by a seeded schedule, and check the outcome of every task."""
