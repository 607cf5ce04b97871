"""A machine that only reads a lake in a bucket writes nothing there, and is told in a sentence what was removed meanwhile."""
