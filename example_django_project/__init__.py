"""A shop whose payments, mails and imports fail the way real ones do; its demo shows where they wait."""
