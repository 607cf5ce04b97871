"""Drafters for speculative decoding: networks, losses, batches, and export for servers."""
