"""Models that answer: decoding with a cache, drafting and verifying."""
