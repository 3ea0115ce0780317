"""What `install` leaves on an app: its settings, queues, exact delays and their records.

May import `retry` and what is below it.
"""
