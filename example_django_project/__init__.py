"""An example shop whose payments, mails and imports fail like real ones; its demo shows where they wait."""
