"""A measurement of the evaluation report: what was measured, of which model, against which, with its 95 % interval.

    Measurement(what="loss_increase", of="target", against="base", value=0.154, low=0.12, high=0.19, n=300, counted="rows",
                unit="nats per token", method=PAIRED)

Gates and release pages read these. Importing this file imports no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from model_ops.drafting import LOOKUPS, Drafting, MeasuredDrafting, Rate, ReplayResult

TIE_NATS = 0.25
"""Up to this distance, a server's greedy token ties with the likeliest one of own layers: the bfloat16 next to a logit between
16 and 32 is 0.125 away, and both logits may be rounded."""


What = Literal[
    "loss",
    "loss_increase",
    "recovery",
    "divergence",
    "agreement",
    "acceptance_length",
    "acceptance_gain",
    "accuracy",
    "accuracy_gain",
    "accuracy_kept",
    "solved",
    "cut",
    "speed_up_estimate",
    "served_distance",
    "served_agreement",
    "preference_accuracy",
    "win_rate",
    "length_ratio",
    "divergence_from_parent",
    "rft_gain",
]

HELD_OUT = "held-out sessions"
HELD_OUT_PAIRS = "held-out pairs"
"""What preference training is measured on; also the key of the reason why there are none."""
HELD_OUT_PROMPTS = "held-out prompts"
"""What training on rewards is measured on."""
LONG_CONTEXT = "long context"
"""Test rows joined to contexts as long as evaluation reads."""
ALL_SUITES = "all suites"
AS_LOGGED = "as logged"
"""Sampling of every prompt by the parameters of its logged request."""
GREEDY = "greedy"
OWN_LAYERS = "own layers"
"""Name of the reference for a server: the layers of this project, in float32."""

NO_JUDGE = "no judge compares answers: set evaluation.tasks.judge"
"""Why no win rate was measured."""
CHAMPION = "champion"
"""The model, or the drafter, of the release that is served now."""
REFERENCE, TARGET, WITH_DRAFTER = "reference", "target", "target with drafter"
"""Forms that a server is started with: the unquantized model, the served one, and the served one with its drafter."""

LEAST_GAIN = 0.01
"""Least difference that counts as one: nats per token of a loss, share of a score. A training that did nothing moves losses of
most rows the same way, by less."""

PAIRED = "Student's t of the differences by row"
OVER_PROMPTS = "Student's t over prompts"


class Measurement(BaseModel):
    """One number of the report."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    what: What
    """loss and loss_increase in nats per token; recovery = exp(against's loss - of's loss); divergence, KL(against || of)
    in nats per token; agreement, the share of tokens at which both have the same likeliest token; acceptance_length in
    tokens per target forward; acceptance_gain, the relative difference of two acceptance lengths; accuracy, a mean score
    from 0 to 1; accuracy_gain, the difference of two, or for a judge the share of wins minus the share of losses;
    accuracy_kept, their ratio; solved, the share of items of which one answer is wholly right, so pass@k of k samples, where
    accuracy is avg@k; cut, the share of answers that ended at the limit of their tokens; speed_up_estimate, the estimated
    ratio of decoding speeds with `of` as the drafter of `against` and without it; served_distance, the mean absolute
    difference of log-probabilities of answer tokens, in a server and by own layers, in nats per token; served_agreement, the
    share of a server's greedy tokens that own layers
    rank first, up to ties; of preference training (preference_change.py): preference_accuracy, the share of pairs whose chosen
    answer gained more; win_rate, a tie as half; length_ratio, of the answers' tokens; divergence_from_parent, the mean of
    KL(of || against) in nats per token; rft_gain (reward_change.py), the difference of the shares of prompts whose answer
    passes."""
    of: str
    against: str = ""
    """of, against: roles of the evaluation's inputs (`target` is the served model), or drafters."""
    on: str = HELD_OUT
    """`held-out sessions`, or the name of a suite."""
    sampling: str = ""
    """How answers were sampled; "" for likelihoods."""
    value: float
    low: float | None = None
    high: float | None = None
    """low, high: the 95 % interval; None if unknown."""
    n: int
    """How many `counted` the number is taken over."""
    counted: str
    unit: str
    method: str = ""


Ends = tuple[float | None, float | None] | None
"""Of a 95 % interval; None if unknown."""


@dataclass
class Findings:
    """What a part of the evaluation measured, and what it did not, with the reason."""

    measurements: list[Measurement] = field(default_factory=list)
    not_measured: dict[str, str] = field(default_factory=dict)

    def measure(self, what: What, value: float, ends: Ends, n: int, counted: str, unit: str, **about: str) -> None:
        """Adds a measurement. about: its other fields, such as `of` and `against`."""
        low, high = ends or (None, None)
        number = {"value": value, "low": low, "high": high, "n": n}
        self.measurements.append(Measurement(what=what, counted=counted, unit=unit, **number, **about))


def at_temperature(temperature: float) -> str:
    """The `sampling` of a fixed temperature: `greedy`, `temperature 0.7`."""
    return GREEDY if temperature == 0 else f"temperature {temperature:g}"


def in_a_server(form: str) -> str:
    """Key, among the reasons why something was not measured, of a form that no server served."""
    return f"{form} in a server"


def measurements_of(report: Mapping[str, Any]) -> list[Measurement]:
    """All measurements of a report, from the content of its report.json."""
    return [Measurement.model_validate(each) for each in report["measurements"]]


def find(measurements: Iterable[Measurement], what: What, **fields: str) -> Measurement | None:
    """The first measurement with these fields; None if there is none."""
    return next(
        (
            each
            for each in measurements
            if each.what == what and all(getattr(each, name) == value for name, value in fields.items())
        ),
        None,
    )


def measured_draftings(forms: Mapping[str, Mapping[str, Any]]) -> list[MeasuredDrafting]:
    """The served model with each drafting, sampled as the traffic is, from the forms of speed.json's `in_server`."""
    return [
        MeasuredDrafting(
            Drafting.model_validate(form["drafting"]),
            {int(concurrency): Rate(rate["median"], rate["p99_s"]) for concurrency, rate in form["as_logged"]["rates"].items()},
            form["as_logged"]["tau"],
        )
        for name, form in forms.items()
        if name != REFERENCE
    ]


def replayed_draftings(report: Mapping[str, Any], drafter: str | None) -> list[ReplayResult]:
    """Acceptance lengths by K, without a server, from the content of a report.json: those over test prompts, sampled as the
    traffic is, which every page shows. Lookups have the K that was best on validation answers. What a drafter accepts at the
    first K positions a round does not depend on whether it drafts more."""
    results = [
        ReplayResult(method=name, num_speculative_tokens=each["num_speculative_tokens"], tau=each["tau"])
        for name in LOOKUPS
        if (each := _as_logged(report, name)) is not None
    ]
    summary = _as_logged(report, drafter)
    if summary is not None:
        results += [
            ReplayResult(method="drafter", num_speculative_tokens=place + 1, tau=1 + accepted)
            for place, accepted in enumerate(accumulate(summary["accepted_by_position"]))
        ]
    return results


def drafter_low(report: Mapping[str, Any], drafter: str | None) -> float | None:
    """The lower end of the 95 % interval of a drafter's acceptance length; None if it was not measured."""
    summary = _as_logged(report, drafter)
    return None if summary is None else summary["tau_low"]


def drafter_gain_low(report: Mapping[str, Any], drafter: str | None) -> float | None:
    """The lower end of the drafter's relative gain over the better lookup, paired over prompts; None if it was not measured."""
    gains = [
        each
        for each in report["measurements"]
        if each["what"] == "acceptance_gain" and each["of"] == drafter and each["against"] != CHAMPION
    ]
    logged = next((each for each in gains if each["sampling"] == AS_LOGGED), gains[0] if gains else None)
    return None if logged is None else logged["low"]


def _as_logged(report: Mapping[str, Any], drafter: str | None) -> Mapping[str, Any] | None:
    """The summary of a drafter, sampled as the traffic is, else of the first way of sampling."""
    of_it = [each for each in report.get("acceptance", []) if each["drafter"] == drafter]
    return next((each for each in of_it if each["sampling"] == AS_LOGGED), of_it[0] if of_it else None)
