"""The worker's main process: bootstep, consumers, requests, and settling of messages."""
