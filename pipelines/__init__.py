"""When things happen: definitions, jobs, schedules, sensors, the recipe, the `millrace` command."""
