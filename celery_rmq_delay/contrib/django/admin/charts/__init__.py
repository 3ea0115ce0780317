"""Charts of the admin, drawn on the server as SVG. No I/O."""
