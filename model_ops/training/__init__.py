"""Training: tokenized documents, packing, the loop, optimizers, checkpoints, recovery."""
