"""Processes that are kept running: `millrace up`, and what it shares with `millrace ui`."""
