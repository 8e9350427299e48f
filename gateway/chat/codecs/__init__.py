"""How messages look on the wire; one module per API."""
