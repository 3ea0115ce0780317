"""The history files: columns, schema and URLs.

May import the modules at the top of the package.
"""
