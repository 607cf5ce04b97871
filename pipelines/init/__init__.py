"""`millrace init`: looks at logs and writes a recipe."""
