"""The collector: takes events and exhausted messages from the broker and writes them into the tables."""
