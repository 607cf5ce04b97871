"""What a worker can be asked to do: one file an operation, its settings beside it."""
