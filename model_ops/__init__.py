"""How weights change: plain torch. Knows nothing of Dagster, the lake or recipes."""
