"""Averages models of one shape, tensor by tensor, and an adapter into its base: the work of operation `merge`."""
