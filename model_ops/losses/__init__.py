"""Losses at a model's head: chunk by chunk, whole or cut over processes, by the fastest exact kernel."""
