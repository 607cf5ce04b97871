"""The smoke set: what a server is asked before it takes traffic."""
