"""Durable runs: turns that outlive their request."""
