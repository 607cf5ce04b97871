"""What exists: thin software-defined assets, one file per stage."""
