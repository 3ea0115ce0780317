"""The shop under outages, live in a terminal: ``python -m example_django_project.demo``, or ``make demo``."""
