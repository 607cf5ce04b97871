"""Inference servers as processes: their command lines, and a server for as long as a block runs."""
