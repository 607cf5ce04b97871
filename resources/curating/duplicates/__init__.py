"""Groups of copies: near ones by MinHash, of equal meaning by embeddings; sql/curating/curate.sql keeps the best."""
