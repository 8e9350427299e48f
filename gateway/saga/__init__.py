"""A way back when a chain fails: what a turn has done is undone, the last first, each at most once."""
