"""Errors that a user can fix: each message is one sentence that names the problem and the remedy.

Every other exception is a bug. The command line ends with the `exit_code` of the error, and needs no other module to know it.
"""

from typing import ClassVar


class UserError(Exception):
    """An error that a user can fix."""

    exit_code: ClassVar[int]


class Misuse(UserError):
    """A request that cannot be fulfilled."""

    exit_code = 2


class CheckFailed(UserError):
    """A checked object is not as it has to be."""

    exit_code = 1


class ModelError(CheckFailed):
    """An input of an operation cannot be used, such as a model directory or a dataset, or a run diverged. The worker reports
    the message unchanged."""
