"""Claims, each a script beside its recorded result: `python -m benchmarks.NAME`, benchmarks/results/NAME.json."""
