"""Operations tried on small models: on a family that the table does not know, and on every family of the table."""
