"""How weights are trained: documents, batches, the loop, its losses and checkpoints."""
