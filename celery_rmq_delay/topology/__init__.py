"""Plans of the broker's objects as pure data, and their application.

May import `amqp` and the modules at the top of the package.
"""
