"""Events about settled messages: schema, encoding, and the way to the broker.

May import `app` and what is below it.
"""
