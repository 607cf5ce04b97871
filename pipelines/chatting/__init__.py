"""Talking to models: `millrace chat`."""
