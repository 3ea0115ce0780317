"""Files of a history and of tables, wherever Spark can reach them.

May import `history`.
"""
