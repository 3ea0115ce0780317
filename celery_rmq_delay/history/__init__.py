"""The history files: columns, schema and URLs."""
