"""Migration: moves waiting messages to other delay queues."""
