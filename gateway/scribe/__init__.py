"""The Scribe: keeps a conversation short, correct and cheap."""
