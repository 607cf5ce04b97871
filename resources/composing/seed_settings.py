"""The recipe's `seeds` settings: examples from files, or the training rows of another dataset of the lake.

    SeedSettings(uri="s3://seeds/handmade/", licence="cc-by-4.0")
    SeedSettings(dataset="old-tutor/sft_dataset", version="3fa94c01d2ab")
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from resources.reading.sources import SourceSettings, Uri


class SeedSettings(SourceSettings):
    """One set of training examples: files, or a dataset of the lake."""

    uri: Uri | None = Field(  # type: ignore[assignment]
        None, min_length=1, description="File, directory, glob, file:// or any fsspec URL such as s3://, without credentials. "
        "Left out: `dataset` names the examples")
    dataset: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]+/[a-z0-9_-]+$")] | None = Field(
        None, description="Dataset of the same lake whose training rows are taken, as workload/name, instead of files")
    version: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")] | None = Field(
        None, description="Version of `dataset`, 12 hex digits. Left out: the current one")
    synthetic: bool = Field(False, description="true: a model wrote these examples. Their rows say so, and "
                            "max_synthetic_share bounds them")
    licence: str | None = Field(None, min_length=1, description="Licence of these examples, for the dataset's card")
    tokenizer: str | None = Field(
        None, min_length=1, description="Directory of the tokenizer (or model) that made the token ids of these examples. "
        "Another vocabulary than the base model's is refused. Left out: not compared")

    @model_validator(mode="after")
    def _one_place(self):
        if (self.uri is None) == (self.dataset is None):
            raise ValueError("give uri (files) or dataset (workload/name of this lake), and not both")
        if self.version is not None and self.dataset is None:
            raise ValueError("version belongs to dataset, and there is none; leave version out, or name a dataset")
        if self.dataset is not None and (self.fields is not None or self.format != "auto"):
            raise ValueError("format and fields say how files are read, and a dataset's rows are known; leave them out")
        return self
