"""What `millrace forget` prints."""
