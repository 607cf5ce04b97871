"""Decides whether anything of a workload is worth retraining, does the least that helps, and settles what came of it."""
