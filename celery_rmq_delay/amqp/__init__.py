"""Everything that touches py-amqp or kombu internals.

May import the modules at the top of the package.
"""
