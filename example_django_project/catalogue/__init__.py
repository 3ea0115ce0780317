"""The catalogue: products, and the price lists that suppliers publish."""
