"""Finding recipes and lakes, and errors of disks."""
