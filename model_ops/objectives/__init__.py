"""Training objectives, one file each: the loss over a batch's token streams (model_ops.loss)."""
