"""Compares traffic with a release's reference window, and says how often a false alarm comes."""
