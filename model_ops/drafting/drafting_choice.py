"""Which drafting to serve: the highest geometric mean, over the endpoint's concurrencies, of tokens/s over those without
drafting; within TIE of it the simplest, and none whose p99 latency exceeds that without drafting by more than `p99_above`.
Without a server's measurements acceptance decides: it pays above `tau_needed`, tau / ratio of one round. No torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pydantic import BaseModel, Field

from model_ops.drafting.drafts import NO_DRAFTING, Drafting

TIE = 0.02
"""Two tokens/s that differ by less than this share tie: passes over the same prompts differ as much."""
P99_ABOVE = 0.1
"""Default of the recipe's `release.drafting.p99_above`."""
NEEDS_A_PACKAGE = "suffix"
"""The lookup that needs a package in the server's environment: only a server that was started shows that it is there."""


@dataclass(frozen=True)
class Rate:
    """Speed at one concurrency."""

    tokens_per_second: float
    p99_s: float
    """99th percentile of the latency of whole answers, in seconds; of fewer than 500 requests a lower quantile
    (evaluation/served_forms.py)."""


@dataclass(frozen=True)
class MeasuredDrafting:
    """One drafting in a server."""

    drafting: Drafting
    rates: Mapping[int, Rate]
    """Speeds by concurrency."""
    tau: float | None = None
    """Acceptance length that the server counted; None if unknown."""


class CurvePoint(BaseModel):
    """One drafting at one concurrency."""

    label: str
    method: str
    num_speculative_tokens: int
    concurrency: int
    tokens_per_second: float
    p99_s: float
    ratio: float
    p99_ratio: float
    """ratio, p99_ratio: over the same numbers without drafting."""
    tau: float | None = None
    tau_needed: float | None = None
    """The acceptance length at which drafting breaks even."""


class BreakEven(BaseModel):
    """Up to how many requests at a time a drafting pays."""

    label: str
    concurrency: float | None
    """Concurrency at which its tokens per second fall below those without drafting, interpolated; None if that does not
    happen within the measured range."""
    says: str


class ReplayResult(BaseModel):
    """Acceptance length over logged answers, without a server."""

    method: str
    num_speculative_tokens: int
    tau: float


class DraftingChoice(BaseModel):
    """drafting.json of a release."""

    drafting: Drafting
    decided_by: Literal["server", "replay", "recipe"]
    """`server` and `replay` are measurements; `recipe` names the drafting itself."""
    reason: str
    server: str = ""
    concurrencies: list[int] = Field(default_factory=list)
    """Concurrencies that decided."""
    curve: list[CurvePoint] = Field(default_factory=list)
    break_even: list[BreakEven] = Field(default_factory=list)
    replayed: list[ReplayResult] = Field(default_factory=list)
    not_measured: dict[str, str] = Field(default_factory=dict)


def choose_in_server(
    measured: Sequence[MeasuredDrafting],
    concurrencies: Sequence[int] | None = None,
    p99_above: float = P99_ABOVE,
    server: str = "",
) -> DraftingChoice:
    """The drafting to serve at these concurrencies (None: at all that were measured). Raises ValueError if `none` was not
    measured, or no concurrency was measured for all draftings."""
    plain = _plain(measured)
    shared = sorted(set.intersection(*(set(each.rates) for each in measured)))
    levels = shared if concurrencies is None else sorted(set(concurrencies))
    if not levels or not set(levels) <= set(shared):
        raise ValueError(f"concurrencies {levels} are not all among the measured ones, {shared}")
    scores = {each.drafting: _score(each, plain, levels) for each in measured}
    worst = {each.drafting: max(each.rates[level].p99_s / plain.rates[level].p99_s for level in levels) for each in measured}
    allowed = [each.drafting for each in measured if worst[each.drafting] <= 1 + p99_above or each.drafting == NO_DRAFTING]
    best = max(scores[each] for each in allowed)
    chosen = min((each for each in allowed if scores[each] >= best * (1 - TIE)), key=lambda each: each.simplicity)
    return DraftingChoice(
        drafting=chosen,
        decided_by="server",
        server=server,
        concurrencies=levels,
        reason=_reason(chosen, scores, worst, allowed, levels, p99_above),
        curve=[_point(each, plain, level) for each in measured for level in shared],
        break_even=[break_even(each, plain) for each in measured if each.drafting != NO_DRAFTING],
    )


def choose_by_replay(
    replayed: Sequence[ReplayResult], drafter_low: float | None = None, gain_low: float | None = None
) -> DraftingChoice:
    """The drafting to serve where no server was asked: the drafter, or the n-gram lookup if the drafter is not better.
    replayed: acceptance lengths; of the drafter, the one with the most tokens counts. drafter_low: lower end of the 95 %
    interval of the drafter's acceptance length; None without a drafter. gain_low: that of its relative gain over the better
    lookup on the same prompts, which says more; None if unknown. Whether drafting is faster than none, no replay says."""
    best = {
        method: max((each for each in replayed if each.method == method), key=lambda each: each.tau, default=None)
        for method in ("ngram", NEEDS_A_PACKAGE)
    }
    drafter = max(
        (each for each in replayed if each.method == "drafter"), key=lambda each: each.num_speculative_tokens, default=None
    )
    ngram, suffix = best["ngram"], best[NEEDS_A_PACKAGE]
    asked = "no server was asked, so acceptance over held-out answers decides, and no speed"
    if drafter is None or drafter_low is None:
        choice, reason = (
            NO_DRAFTING,
            (f"no drafting: {asked}; there is no trained drafter, and only a server shows whether a lookup pays"),
        )
    elif ngram is None or drafter_low > ngram.tau or (gain_low is not None and gain_low >= 0):
        choice = _of(drafter)
        beaten = "" if ngram is None else f", of the n-gram lookup {ngram.tau:.2f}"
        paired = (
            "" if gain_low is None else f"; its gain over the better lookup on the same prompts is at least {gain_low:z.1%}"
        )
        reason = f"{choice.label}: {asked}; acceptance length {drafter.tau:.2f} (lower end {drafter_low:.2f}){beaten}{paired}"
    else:
        choice = _of(ngram)
        reason = (
            f"{choice.label}: {asked}; acceptance length {ngram.tau:.2f}, which the drafter's {drafter.tau:.2f} does not "
            f"exceed for certain (lower end {drafter_low:.2f}), and a lookup is simpler"
        )
    if suffix is not None and suffix.tau > max((each.tau for each in (ngram, drafter) if each), default=1.0):
        reason += (
            f". The suffix lookup has {suffix.tau:.2f}, but it needs the package arctic-inference in the server: name a "
            "server in evaluation.server to measure it"
        )
    return DraftingChoice(drafting=choice, decided_by="replay", reason=reason, replayed=list(replayed))


def varying_drafting(measured: Sequence[MeasuredDrafting], can_vary: Callable[[Drafting], bool]) -> Drafting | None:
    """K by batch size, from the best K of one method at each measured concurrency; None if it promises no more than the best
    single K. can_vary: whether the server can vary K of such a drafting. Between two concurrencies, the K of the larger holds.
    """
    plain = _plain(measured)
    levels = sorted(set.intersection(*(set(each.rates) for each in measured)))
    best_single = max(_score(each, plain, levels) for each in measured)
    candidates: list[tuple[float, Drafting]] = []
    for method in dict.fromkeys(each.drafting.method for each in measured):
        of_method = [each for each in measured if each.drafting.method in (method, "none") and not each.drafting.by_batch_size]
        if method == "none" or not all(can_vary(each.drafting) for each in of_method if each is not plain):
            continue
        best = [max(of_method, key=lambda each, level=level: each.rates[level].tokens_per_second) for level in levels]
        lengths = [each.drafting.num_speculative_tokens for each in best]
        promised = _mean_ratio(
            [
                each.rates[level].tokens_per_second / plain.rates[level].tokens_per_second
                for each, level in zip(best, levels, strict=True)
            ]
        )
        if len(set(lengths)) > 1 and promised > best_single * (1 + TIE):
            candidates.append(
                (promised, Drafting(method=method, num_speculative_tokens=max(lengths), by_batch_size=_ranges(levels, lengths)))
            )
    return max(candidates, key=lambda each: each[0])[1] if candidates else None


def break_even(measured: MeasuredDrafting, plain: MeasuredDrafting) -> BreakEven:
    """Up to which concurrency a drafting pays; interpolated on a logarithmic scale between measured ones."""
    levels = sorted(set(measured.rates) & set(plain.rates))
    ratios = [measured.rates[level].tokens_per_second / plain.rates[level].tokens_per_second for level in levels]
    label, span = measured.drafting.label, f"{levels[0]} to {levels[-1]}"
    for (level, ratio), (above, less) in pairwise(zip(levels, ratios, strict=True)):
        if ratio >= 1 > less:
            share = (ratio - 1) / (ratio - less)
            at = math.exp(math.log(level) + share * (math.log(above) - math.log(level)))
            return BreakEven(label=label, concurrency=at, says=f"pays up to about {at:.1f} requests at a time")
    pays = all(ratio >= 1 for ratio in ratios)
    return BreakEven(
        label=label,
        concurrency=None,
        says=f"pays at every measured concurrency, {span}"
        if pays
        else f"pays at no measured concurrency, {span}"
        if max(ratios) < 1
        else f"pays only at {' and '.join(str(at) for at, ratio in zip(levels, ratios, strict=True) if ratio >= 1)} "
        "requests at a time",
    )


def _plain(measured: Sequence[MeasuredDrafting]) -> MeasuredDrafting:
    without = next((each for each in measured if each.drafting == NO_DRAFTING), None)
    if without is None:
        raise ValueError("the server was not measured without drafting, so there is nothing to compare with")
    return without


def _score(measured: MeasuredDrafting, plain: MeasuredDrafting, levels: Sequence[int]) -> float:
    return _mean_ratio([measured.rates[level].tokens_per_second / plain.rates[level].tokens_per_second for level in levels])


def _mean_ratio(ratios: Sequence[float]) -> float:
    """Geometric mean; 0 if one of them is 0."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if min(ratios) > 0 else 0.0


def _point(measured: MeasuredDrafting, plain: MeasuredDrafting, level: int) -> CurvePoint:
    rate, without = measured.rates[level], plain.rates[level]
    ratio = rate.tokens_per_second / without.tokens_per_second
    tau = None if measured.drafting == NO_DRAFTING else measured.tau
    return CurvePoint(
        label=measured.drafting.label,
        method=measured.drafting.method,
        num_speculative_tokens=measured.drafting.num_speculative_tokens,
        concurrency=level,
        tokens_per_second=rate.tokens_per_second,
        p99_s=rate.p99_s,
        ratio=ratio,
        p99_ratio=rate.p99_s / without.p99_s,
        tau=tau,
        tau_needed=tau / ratio if tau is not None and ratio else None,
    )


def _of(replayed: ReplayResult) -> Drafting:
    return Drafting(method=replayed.method, num_speculative_tokens=replayed.num_speculative_tokens)


def _ranges(levels: Sequence[int], lengths: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """(first, last, K) for batch sizes from 1 to the largest level; neighbours with the same K are one range."""
    ranges: list[tuple[int, int, int]] = []
    for level, length in zip(levels, lengths, strict=True):
        if ranges and ranges[-1][2] == length:
            ranges[-1] = (ranges[-1][0], level, length)
        else:
            ranges.append((ranges[-1][1] + 1 if ranges else 1, level, length))
    return tuple(ranges)


def _reason(
    choice: Drafting,
    scores: Mapping[Drafting, float],
    worst: Mapping[Drafting, float],
    allowed: Sequence[Drafting],
    levels: Sequence[int],
    p99_above: float,
) -> str:
    at = f"at {_counted(levels)} at a time"
    others = sorted((each for each in scores if each not in (choice, NO_DRAFTING)), key=lambda each: -scores[each])
    if choice == NO_DRAFTING:
        said = f"no drafting: nothing that may be served is more than {TIE:z.0%} faster {at}"
    else:
        said = f"{choice.label}: {scores[choice]:.2f} times the tokens/s without drafting {at}"
    if others:
        nearest = others[0]
        why = ""
        if nearest not in allowed:
            why = f", whose p99 latency is {worst[nearest] - 1:z.0%} above that without drafting (allowed: {p99_above:z.0%})"
        elif scores[nearest] >= scores[choice]:
            why = ", a tie with what is simpler"
        said += f"; the best other is {nearest.label} with {scores[nearest]:.2f} times{why}"
    return said


def _counted(levels: Sequence[int]) -> str:
    if len(levels) == 1:
        return "1 request" if levels[0] == 1 else f"{levels[0]} requests"
    return f"{', '.join(map(str, levels[:-1]))} and {levels[-1]} requests"
