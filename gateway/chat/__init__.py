"""What a conversation is made of: pure values and pure functions."""
