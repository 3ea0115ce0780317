"""Move waiting messages from one way of delaying to another."""
