"""One file per log format: what a gateway wrote, as interactions."""
