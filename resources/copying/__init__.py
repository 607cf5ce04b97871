"""Moves artefacts between lakes."""
