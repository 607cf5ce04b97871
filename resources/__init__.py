"""What assets plug into: the lake, the registry of artefacts, the launcher, the endpoint."""
