"""Training, evaluation and export of models in plain torch. Knows nothing of Dagster, the lake or recipes."""
