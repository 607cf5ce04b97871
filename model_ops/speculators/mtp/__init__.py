"""MTP: the base model's own layer for multi-token prediction, trained further."""
