"""What stands between a model's call and a tool, and between a tool's result and the model: one guard a file.

The Courier knows their order; no guard knows another.
"""
