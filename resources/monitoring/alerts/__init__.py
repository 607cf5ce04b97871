"""Alerts: what a person should know, sent once through the channels of the recipe."""
