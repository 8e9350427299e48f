"""How a database gets from any older shape to the tables of today."""
