"""How rows change: one .sql file per step, parameters bound. Read by resources alone."""
