"""A lake in a bucket, and its mirror: the local copy that one machine works in."""
