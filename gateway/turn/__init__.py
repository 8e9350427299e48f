"""One client request up to its final answer."""
