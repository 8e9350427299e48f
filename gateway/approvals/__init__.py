"""A human before the irreversible: which calls wait, who decides, and what becomes of them."""
