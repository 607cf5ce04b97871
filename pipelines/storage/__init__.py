"""Where recipes and lakes are found, and what a disk refuses."""
