"""Decoding with a KV cache, speculative decoding, and measurements of acceptance."""
