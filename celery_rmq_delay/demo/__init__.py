"""The demo: twenty tasks on one ladder, live in a terminal, with the core's dependencies only."""
