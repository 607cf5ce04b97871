"""The recipe's `automation.decide`: which causes start a retraining, what it may cost, and when it must pay back."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from model_ops.jobs import Settings
from resources.releases import closed_times

NoticedCause = Literal["new_logs", "drift", "acceptance", "feedback", "schedule"]
Cause = NoticedCause | Literal["request"]
CAUSES: tuple[NoticedCause, ...] = ("acceptance", "feedback", "schedule", "new_logs", "drift")
"""In order of precedence: the first one that holds and was not decided yet is decided."""


class BudgetSettings(Settings):
    """What retraining may use within seven days."""

    runs_per_week: float = Field(
        3,
        ge=0,
        le=10_000,
        description="Most runs within seven days; 0.5 is one run in two weeks. 0: nothing is run, and the decisions say so",
    )
    device_hours_per_week: float | None = Field(
        None,
        ge=0,
        le=1e7,
        description="Most device hours of runs that start within seven days. A run of unknown cost is not started. 0: nothing "
        "is run. Left out: no bound",
    )
    money_per_week: float | None = Field(
        None,
        ge=0,
        le=1e9,
        description="The same of money, in the currency of `price_per_device_hour`, which it needs. 0: nothing is run. Left "
        "out: no bound",
    )


class DecideSettings(Settings):
    """Whether a sensor decides by itself what is retrained, and by which bounds."""

    enabled: bool = Field(False, description="true: the sensor `decide` runs as soon as the Dagster daemon does")
    dry_run: bool = Field(
        False, description="true: decisions are written to the table `retraining_decisions` and nothing is started"
    )
    causes: list[NoticedCause] = Field(
        default_factory=lambda: list(CAUSES),
        description="What is looked at. schedule: the times of `automation.retrain.cron`, if `automation.retrain.enabled`",
    )
    least_new_rows: int = Field(200, ge=1, le=10**9, description="new_logs: rows since the last training that make a cause")
    least_new_share: float = Field(
        0.05, ge=0, le=1, description="new_logs: the same, as a share of the rows that were trained on"
    )
    drift_trains: bool = Field(
        False,
        description="false: drift of the traffic alone (not of acceptance or feedback) starts no training; the "
        "next run's evaluation is widened. true: it is weighed as other causes are",
    )
    drift_widens: float = Field(
        2.0,
        ge=1,
        le=100,
        description="How many times as many rows and prompts an evaluation takes while a test of drift alarms",
    )
    payback_days: float | None = Field(
        30.0,
        gt=0,
        le=3650,
        description="Days within which a drafter must save the device hours that it costs, by its last measured gain. null: "
        "any gain above 0 is enough",
    )
    least_loss_gain: float = Field(
        0.01,
        ge=0,
        le=10,
        description="Least fall of the held-out loss (nats per token), as the last run measured it, for which a model is "
        "fine-tuned",
    )
    preference_on_feedback: bool = Field(
        False,
        description="true: where more feedback is bad (the test `bad_feedback`), the model is trained anew on preferences with "
        "the newest feedback, within the budget. Nothing predicts what that gains; the gates measure it",
    )
    requests_per_day: float | None = Field(
        None,
        gt=0,
        le=1e12,
        description="Requests a day that the endpoint answers. Left out: those in the logs, which may be a sample",
    )
    tokens_per_second: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="Answer tokens a second of one serving device. Left out: as measured while serving, or by the evaluation",
    )
    devices_per_server: int = Field(
        1,
        ge=1,
        le=1_000_000,
        description="Devices of one server: tokens/s that a server reported, or that the evaluation "
        "measured in one, are of all of them",
    )
    price_per_device_hour: float | None = Field(
        None, ge=0, le=1e6, description="Price of an hour of one device. Left out: costs are counted in hours only"
    )
    devices: int = Field(1, ge=1, le=1_000_000, description="Devices that a retraining occupies, for device hours and money")
    drafter_step_share: float = Field(
        0.25, gt=0, le=1, description="Steps of a drafter that continues the previous one, as a share of a new drafter's"
    )
    replay: float = Field(
        0.5, ge=0, le=10, description="Old rows for each new one where fine-tuning continues from the previous model"
    )
    cool_down_hours: float = Field(12.0, ge=0, le=8760, description="Hours between the end of a run and the next one's start")
    most_back_off_days: float = Field(
        14.0, ge=0, le=366, description="After n failures in a row, the cool-down is 2^n times as long, at most this many days"
    )
    quiet: Annotated[list[str], AfterValidator(closed_times.checked)] = Field(
        default_factory=list,
        description="Times at which nothing is started, as cron schedules of minutes: `* 8-19 * * 1-5` "
        "is every working day from 8:00 to 20:00",
    )
    timezone: Annotated[str, AfterValidator(closed_times.checked_zone)] = Field(
        "UTC", description="Time zone of `quiet` and of the schedule, such as Europe/Amsterdam"
    )
    budget: BudgetSettings = Field(default_factory=BudgetSettings, description="What retraining may use")
