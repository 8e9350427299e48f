"""Who may do what, and what may leave the house."""
