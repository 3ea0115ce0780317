"""Plans of the broker's objects as data, and the steps from one plan to another.

May import `amqp` and what is below it.
"""
