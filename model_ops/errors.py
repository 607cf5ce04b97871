"""The one exception for inputs that are wrong: a model directory, a dataset, a tokenizer, a diverged run.

Its message is one sentence for the person who can fix it; the worker hands it on as it is.
"""

from __future__ import annotations


class ModelError(Exception):
    """An input of an operation cannot be used; the message names it and says what would be right."""
