"""`millrace demo`: its traffic and its run."""
