"""Questions to a lake on the terminal: `millrace sql` and `millrace why`."""
