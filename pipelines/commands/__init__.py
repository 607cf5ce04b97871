"""The commands of `millrace`, one file for each kind of thing a person does."""
