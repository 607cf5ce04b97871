"""Predicts memory and speed of training from a model's config, and chooses a setup."""
