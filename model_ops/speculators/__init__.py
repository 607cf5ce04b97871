"""Drafters: their networks, losses, batches and the form in which servers load them."""
