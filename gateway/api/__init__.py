"""The HTTP edge: one file per endpoint."""
