"""Sentence encoders behind the `Encoder` protocol."""
