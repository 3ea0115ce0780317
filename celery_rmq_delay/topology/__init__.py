"""Topologies: the exchanges, queues and bindings that realise a delay."""
