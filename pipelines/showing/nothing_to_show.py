"""NothingToShow: the error of a lake without rows to show yet."""

from model_ops.errors import Misuse


class NothingToShow(Misuse):
    """The lake has no dataset or model to show yet; the message says what makes it."""
