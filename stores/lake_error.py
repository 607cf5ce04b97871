"""The error of a lake that cannot be used."""


class LakeError(Exception):
    """The lake cannot be used; the message says what to change."""
