"""Settings of a training that ends early once it costs more than it brings. Importing this module imports no torch."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator

from model_ops.jobs import Settings


class EarlyEndSettings(Settings):
    """Ends a training when a further interval of it costs more device time than its gain is worth.

    MEASURES: the measurement on held-out rows that counts, and RISES: whether more is better. LOOKED_UP: keys that a run fills
    from what earlier runs measured, where they are left out; what it fills in counts for no version of an artefact.
    """

    MEASURES: ClassVar[str] = ""
    RISES: ClassVar[bool] = True
    LOOKED_UP: ClassVar[frozenset[str]] = frozenset({"trained_tokens_per_second"})

    enabled: bool = Field(False, description="true: the training ends early. Needs held-out rows")
    evaluations: int = Field(
        10,
        ge=5,
        le=200,
        description="Evaluations on held-out rows over all steps, instead of at most four. The training is "
        "weighed after each one from the fourth on",
    )
    least_share: float = Field(0.25, ge=0, lt=1, description="Share of the steps that are trained in any case")
    trained_tokens_per_second: float | None = Field(
        None,
        gt=0,
        le=1e12,
        description="Tokens that this training reads a second, on all of its devices: what an interval "
        "costs. Left out: as in the last training of this stage",
    )

    def declared(self) -> dict[str, Any]:
        """The keys that are the same whenever a run looks: without those in LOOKED_UP."""
        return self.model_dump(mode="json", exclude=set(self.LOOKED_UP))


class EarlyEndOfDrafter(EarlyEndSettings):
    """The gain of a drafter is device time that decoding saves until the next drafter replaces it."""

    MEASURES: ClassVar[str] = "validation_expected_tau"
    LOOKED_UP: ClassVar[frozenset[str]] = frozenset(
        {*EarlyEndSettings.LOOKED_UP, "decode_hours_per_day", "decode_hours_at_tau", "serves_days"}
    )

    decode_hours_per_day: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="Device hours in which a day's answers are decoded. Left out: requests a day and "
        "tokens of an answer by the logs, tokens/s as the release measured them",
    )
    decode_hours_at_tau: float | None = Field(
        None,
        ge=1,
        le=1000,
        description="Expected acceptance length, on held-out answers, of the drafter that "
        "`decode_hours_per_day` was measured with. Left out: the last drafter's",
    )
    serves_days: float | None = Field(
        None,
        gt=0,
        le=3650,
        description="Days that the drafter serves. Left out: from one time of `automation.retrain.cron` "
        "to the next where that is enabled, else `automation.decide.payback_days`, else 30",
    )


class EarlyEndOfModel(EarlyEndSettings):
    """The gain of a model is a lower loss on held-out rows, whose worth in device time a person says."""

    MEASURES: ClassVar[str] = "validation_loss"
    RISES: ClassVar[bool] = False
    COUNTED: ClassVar[str] = "token"

    nats_per_device_hour: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="Least fall of the held-out loss (nats per token) that a device hour of training has "
        "to bring. Left out: only where `enabled` is false",
    )

    @model_validator(mode="after")
    def _worth_is_said(self):
        if self.enabled and self.nats_per_device_hour is None:
            raise ValueError(
                "nats_per_device_hour is left out, so nothing says what a lower loss is worth: give the least "
                f"fall of the held-out loss (nats per {self.COUNTED}) that a device hour has to bring, such as 0.01"
            )
        return self


class EarlyEndOfPairs(EarlyEndOfModel):
    """The gain of a model that scores answers is a lower loss on held-out pairs, whose worth in device time a person says."""

    COUNTED: ClassVar[str] = "pair"

    nats_per_device_hour: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="Least fall of the held-out loss (nats per pair) that a device hour of training has "
        "to bring. Left out: only where `enabled` is false",
    )
