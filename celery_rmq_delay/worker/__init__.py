"""The main process of a worker: bootstep, consumers, requests, and how messages are settled.

May import `publish` and what is below it.
"""
