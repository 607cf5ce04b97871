"""What `millrace models` prints."""
