"""Serves what an alias of an endpoint names: verified, started, tried, switched without a lost request."""
