"""NothingToShow: the error of a lake without rows to show yet."""


class NothingToShow(Exception):
    """The lake has no dataset or model to show yet; the message says what makes it."""
