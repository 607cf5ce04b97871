"""The error of a lake that cannot be used."""

from model_ops.jobs import Misuse


class LakeError(Misuse):
    """The lake cannot be used; the message says what to change."""
