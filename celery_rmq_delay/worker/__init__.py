"""The worker's main process: bootstep, consumers, requests, and settling of messages.

May import `publish` and what is below it.
"""
