"""The recipe as a contract: how its text is read, what its keys accept, and how a problem is said."""
