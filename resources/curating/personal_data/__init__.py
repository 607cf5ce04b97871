"""Finds personal data and secrets in messages, and replaces them by typed placeholders."""
