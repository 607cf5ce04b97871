"""OpenLineage events of runs: what is said (events.py, run_events.py) and where it is sent (destination.py)."""
