"""Which route and which model a request goes to."""
