"""Quantization schemes: how weights are encoded, what config.json says of it, and layers that compute like a server's."""
