"""The collector: takes events and exhausted messages from the broker and writes them into the tables.

`deliveries` and `consumer` are its broker side, `reading` and `facts` parse messages, `database` writes a batch in one
transaction, `collector` is the loop, `assembly` builds all of them from the settings.
"""
