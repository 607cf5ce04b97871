"""What a person has to change before traffic can be captured."""

from __future__ import annotations

from model_ops.errors import Misuse


class CaptureError(Misuse):
    """The capture layer cannot start as it was asked to; the message says what to change."""
