"""Events about settled messages: schema, encoding, and the way to the broker."""
