"""Alerts: what a person should know, told once through the channels of the recipe."""
