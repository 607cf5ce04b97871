"""What Dagster runs: one recipe's assets, jobs, schedules and sensors."""
