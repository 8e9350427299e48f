"""Private data: found, replaced by placeholders, put back."""
