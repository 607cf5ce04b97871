"""Talking to releases and models."""
