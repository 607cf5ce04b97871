"""Releases on the terminal: `verify`, `approve`, `withdraw`, `rollback`, `measure`."""
