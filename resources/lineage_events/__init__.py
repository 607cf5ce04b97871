"""OpenLineage events of a run's steps: what was read, what was made, from which columns."""
