"""Running a recipe: Dagster's instance, the process of a run, what the terminal shows of it, the UI."""
