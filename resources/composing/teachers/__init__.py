"""Asks a teacher at an endpoint for answers to the dataset's prompts: pace, cost, kept answers, the dataset of them."""
