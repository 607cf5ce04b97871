"""Many processes as one: who holds which data and which part of each weight, by logical axes."""
