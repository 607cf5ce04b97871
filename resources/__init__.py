"""What assets use: the lake, the registry of artefacts, the launcher, the endpoint."""
