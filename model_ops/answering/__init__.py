"""Answers of the target to logged prompts: which turns, with which sampling parameters, generated here or by a server."""
