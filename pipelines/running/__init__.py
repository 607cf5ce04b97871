"""Running a recipe: Dagster's instance, the run's process, its display on the terminal, the UI."""
