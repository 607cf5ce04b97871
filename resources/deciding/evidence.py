"""What a decision is made from: traffic, drift, serving metrics, trained versions and the recipe's facts, as plain values.

An alarm of the table `drift` goes on until its value falls below half of its bound, so a value that hovers about the bound is
one cause, not one a day. The chart of acceptance begins again at 0 after each alarm and rises to the next one while the fall
goes on, so its episode ends only after CLEAR_DAYS days with drafts in a row below half of the bound."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from model_ops.jobs import Settings
from resources.releases import closed_times
from resources.stages import ModelPolicy

NoticedCause = Literal["new_logs", "drift", "acceptance", "feedback", "schedule"]
Cause = NoticedCause | Literal["request"]
CAUSES: tuple[NoticedCause, ...] = ("acceptance", "feedback", "schedule", "new_logs", "drift")
"""In order of precedence: the first one that holds and was not decided yet is decided."""


class BudgetSettings(Settings):
    """What retraining may use within seven days."""

    runs_per_week: Annotated[float, Field(ge=0, le=10_000)] = Field(
        3, description="Most runs within seven days; 0.5 is one run in two weeks. 0: nothing is run, and the decisions say so"
    )
    device_hours_per_week: Annotated[float, Field(ge=0, le=1e7)] | None = Field(
        None,
        description="Most device hours of runs that start within seven days. A run of unknown cost is not started. 0: nothing "
        "is run. Left out: no bound",
    )
    money_per_week: Annotated[float, Field(ge=0, le=1e9)] | None = Field(
        None,
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
    drift_widens: Annotated[float, Field(ge=1, le=100)] = Field(
        2.0, description="How many times as many rows and prompts an evaluation takes while a test of drift alarms"
    )
    payback_days: Annotated[float, Field(gt=0, le=3650)] | None = Field(
        30.0,
        description="Days within which a drafter must save the device hours that it costs, by its last measured gain. null: "
        "any gain above 0 is enough",
    )
    least_loss_gain: Annotated[float, Field(ge=0, le=10)] = Field(
        0.01,
        description="Least fall of the held-out loss (nats per token), as the last run measured it, for which a model is "
        "fine-tuned",
    )
    preference_on_feedback: bool = Field(
        False,
        description="true: where more feedback is bad (the test `bad_feedback`), the model is trained anew on preferences with "
        "the newest feedback, within the budget. Nothing predicts what that gains; the gates measure it",
    )
    requests_per_day: Annotated[float, Field(gt=0, le=1e12)] | None = Field(
        None, description="Requests a day that the endpoint answers. Left out: those in the logs, which may be a sample"
    )
    tokens_per_second: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None,
        description="Answer tokens a second of one serving device. Left out: as measured while serving, or by the evaluation",
    )
    devices_per_server: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        1,
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


CLEARS_AT = 0.5
"""Share of the bound below which an alarm ends."""
CLEAR_DAYS = {"acceptance": 7}
"""Days in a row, of those that a test has values for, after which its alarm ends; of other tests 1. A small fall takes days
from one alarm to the next, and its sum is below half of the bound on half of them."""
LATE_DAYS = 14
"""Days after the newest compared one within which an episode still counts: a test that is no longer compared goes silent."""


@dataclass(frozen=True)
class Episode:
    test: str
    window_days: int
    start: date
    """The day of its first alarm."""
    end: date
    value: float
    bound: float
    """`value`, `bound`: of the newest day."""

    def __str__(self) -> str:
        return f"{self.test} over {self.window_days} d since {self.start} ({self.value:.3g}, bound {self.bound:.3g})"


def episodes(rows: Iterable[Mapping[str, Any]]) -> list[Episode]:
    """The episodes that go on at the end of their series. rows: of the table `drift`, of one release."""
    series: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["value"] is not None and row["bound"] is not None:
            series.setdefault((row["test"], row["window_days"]), []).append(row)
    newest = max((row["dt"] for of_test in series.values() for row in of_test), default=None)
    going: list[Episode] = []
    for (test, window), of_test in sorted(series.items()):
        start: date | None = None
        last, clear = None, 0
        for last in sorted(of_test, key=lambda row: row["dt"]):
            is_clear = not last["alarm"] and last["value"] < CLEARS_AT * last["bound"]
            clear = clear + 1 if is_clear else 0
            if last["alarm"] and start is None:
                start = last["dt"]
            elif clear >= CLEAR_DAYS.get(test, 1):
                start = None
        if start is not None and last is not None and newest is not None and (newest - last["dt"]).days <= LATE_DAYS:
            going.append(Episode(test, window, start, last["dt"], float(last["value"]), float(last["bound"])))
    return going


@dataclass(frozen=True)
class TrainingRecord:
    """What a model was trained on."""

    version: str
    rows: int
    """Cleaned rows that the grouping pass had read by then."""


@dataclass(frozen=True)
class Evidence:
    """Counts are of one workload."""

    workload: str
    release: str = ""
    rows: int = 0
    newest_day: date | None = None
    drafter: TrainingRecord | None = None
    model: TrainingRecord | None = None
    episodes: tuple[Episode, ...] = ()
    tau_released: float | None = None
    """Acceptance length of the champion's drafter in its evaluation report."""
    tau_served: float | None = None
    """Acceptance length of the last days by the servers' counters."""
    requests_a_day: float | None = None
    answer_tokens_a_request: float | None = None
    tokens_per_second: float | None = None
    schedule_due: str = ""
    candidate: str = ""
    drafting: tuple[str, ...] = ()
    """Up to which concurrency the release's drafting pays, in words."""
    missing: tuple[str, ...] = ()
    """Models of the recipe that were never made."""
    devices: int = 1

    @property
    def new_rows_of_drafter(self) -> int:
        return max(0, self.rows - self.drafter.rows) if self.drafter else self.rows

    @property
    def new_rows_of_model(self) -> int:
        return max(0, self.rows - self.model.rows) if self.model else self.rows

    @property
    def decode_hours_a_day(self) -> float | None:
        """Device hours that a day's answers take to decode; None if traffic or speed are unknown."""
        if not (self.requests_a_day and self.answer_tokens_a_request and self.tokens_per_second):
            return None
        return self.requests_a_day * self.answer_tokens_a_request / self.tokens_per_second / 3600

    def as_record(self) -> dict[str, Any]:
        """For the table: without the counts of each day."""
        record = asdict(self) | {
            "newest_day": self.newest_day.isoformat() if self.newest_day else None,
            "episodes": [str(each) for each in self.episodes],
            "new_rows_of_drafter": self.new_rows_of_drafter,
            "new_rows_of_model": self.new_rows_of_model,
            "decode_hours_a_day": self.decode_hours_a_day,
        }
        return {name: value for name, value in record.items() if value not in (None, "", (), [], {})}


@dataclass(frozen=True)
class RecipeFacts:
    """What a recipe says, as far as deciding asks."""

    workload: str
    policy: ModelPolicy
    cron: str = ""
    """The schedule; "" where it is off."""
    architecture: str = ""
    """The drafter's."""
    named_datasets: list[str] = field(default_factory=list)
    """Every dataset under `datasets.named`."""
    evaluation_prompts: int = 0
    releases: bool = True
    """Whether the recipe makes a release."""
    as_adapter: bool = False
    """Whether the release is an adapter on the base model; a continued model cannot be released so."""
    decide: DecideSettings = field(default_factory=DecideSettings)
    """The recipe's `automation.decide`."""
