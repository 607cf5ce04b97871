"""ModelError: the exception for a bad input of an operation, such as a model directory or a dataset, and for a diverged run.

Its message is one sentence for the person who can fix it; the worker reports it unchanged.
"""

from __future__ import annotations


class ModelError(Exception):
    """An input of an operation cannot be used; the message names it and says how to fix it."""
