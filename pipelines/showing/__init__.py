"""`millrace show`: rendered rows of a dataset."""
