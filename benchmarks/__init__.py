"""Benchmarks: one script for each claim, with its recorded result: `python -m benchmarks.NAME`,
benchmarks/results/NAME.json."""
