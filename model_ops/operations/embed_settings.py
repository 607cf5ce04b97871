"""Settings of operation `embed`. Importing this file imports no torch."""

from pydantic import Field

from model_ops.jobs import Settings


class EmbedSettings(Settings):
    """Text embeddings: the mean of a model's last hidden states."""

    max_length: int = Field(512, ge=8, description="tokens of a text that are looked at")
    batch: int = Field(32, ge=1, description="texts at a time")
