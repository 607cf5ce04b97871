"""Output on a terminal: consoles, tables, options that commands share."""
