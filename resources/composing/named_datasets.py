"""The recipe's `datasets.named`: further datasets of conversations, for stages of training that name theirs.

    NamedDataset(min_quality=8, mix={"handmade": 0.5, "gateway": 0.5}, max_rows=2_000)
    named.as_dataset(datasets.sft)          # DatasetSettings: its own mixture, the splits and rendering of datasets.sft

A named dataset has the held-out rows of `sft_dataset`, so what one stage trains on is never what another is measured on.
"""

from __future__ import annotations

from datetime import date

from pydantic import Field, model_validator

from model_ops.settings import Settings
from resources.composing.dataset_settings import DatasetSettings, Mixture


class RowFilter(Settings):
    """Which rows of traffic a dataset trains on. Seeds are chosen by `mix` alone."""

    min_quality: float | None = Field(
        None, ge=1, le=10, description="Least quality that `curation.judge` gave to a row of traffic. Left out: any")
    min_difficulty: float | None = Field(
        None, ge=1, le=10, description="Least difficulty that `curation.judge` gave to a row of traffic. Left out: any")
    min_feedback: float | None = Field(
        None, ge=-1, le=1, description="Least feedback on a row of traffic, where 1 is a thumb up; a row without feedback is "
        "left out. Left out: any")
    languages: list[str] | None = Field(
        None, min_length=1, description="Languages of the rows of traffic, such as [en, de]. Left out: all")
    first_day: date | None = Field(None, description="First day of the traffic that is trained on. Left out: the recipe's")
    last_day: date | None = Field(None, description="Last day of the traffic that is trained on. Left out: the recipe's")

    @model_validator(mode="after")
    def _in_order(self):
        if self.first_day and self.last_day and self.last_day < self.first_day:
            raise ValueError(f"last_day {self.last_day} is before first_day {self.first_day}; change one of them")
        return self


class NamedDataset(Mixture, RowFilter):
    """A further dataset of conversations, with a mixture and a choice of rows of its own. Splits and rendering are those of
    `datasets.sft`."""

    def as_dataset(self, sft: DatasetSettings) -> DatasetSettings:
        """The settings that it is built with, without the choice of rows."""
        own = {name: getattr(self, name) for name in Mixture.model_fields}
        return sft.model_copy(update={**own, "stratify_by": []})  # what strata lend, sft_dataset has lent

    @property
    def only(self) -> RowFilter:
        """The choice of rows."""
        return RowFilter(**{name: getattr(self, name) for name in RowFilter.model_fields})
