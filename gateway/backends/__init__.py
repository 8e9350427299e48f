"""The far side: everything that can answer a model call."""
