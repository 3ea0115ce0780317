"""The collector: takes events and exhausted messages from the broker and writes them into the tables.

`deliveries` and `consumer` are its broker side, `reading` and `facts` say what a message means, `database` writes a
batch in one transaction, `collector` runs them, `assembly` makes them of the settings.

May import `alerts`, `services`, `models` and what is below them.
"""
