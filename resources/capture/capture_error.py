"""What a person has to change before traffic can be captured."""

from __future__ import annotations


class CaptureError(Exception):
    """The capture layer cannot start as it was asked to; the message says what to change."""
