"""Diagnosis of what would prevent retries from being parked, with a fix for each problem."""
