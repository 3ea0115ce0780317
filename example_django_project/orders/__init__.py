"""Orders: placed, paid at a payment gateway, confirmed by mail."""
