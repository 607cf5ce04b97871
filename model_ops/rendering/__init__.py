"""Conversations as a server renders them: what is context, and what the model has to say after it."""
