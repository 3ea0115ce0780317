"""The Django app: what the events of the workers say, in tables, with an admin to look at and to act on."""
