"""Merges models of one shape: formulas on tensors, checkpoints read tensor by tensor, and a search of weights."""
