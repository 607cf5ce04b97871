"""The target's answers to logged prompts: choice of turns, sampling parameters, generation here or by a server."""
