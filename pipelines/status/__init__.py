"""`millrace status`: which artefacts are current, which are stale and why, what runs."""
