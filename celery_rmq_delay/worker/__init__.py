"""The worker's side: bootstep, consumer, requests, and how messages are settled.

May import `publish` and what is below it.
"""
