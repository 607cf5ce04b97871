"""Captures the traffic of an OpenAI-compatible server as log objects that millrace reads, with feedback beside them."""
