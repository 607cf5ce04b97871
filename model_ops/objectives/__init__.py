"""What training minimises: one file an objective, its loss over a batch's token streams (model_ops.loss)."""
