"""Faults by seeded schedule on a whole system under load, and a checker that proves what became of every task."""
