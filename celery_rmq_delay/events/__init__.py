"""Events of settled messages: their schema, encoding and way to the broker.

May import `app` and what is below it.
"""
