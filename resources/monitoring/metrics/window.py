"""What happened between two readings of a server: a row of the table serving_metrics.

A counter that fell, or another start of the process, is a restart: what the server counts since then is what happened. What it
counted between the reading before and its end is lost with it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resources.monitoring.metrics.servers import BUCKET, COUNT, FINISHED, HTTP, LATENCIES, POSITION, SGLANG, SUM, Reading

QUANTILES = (0.5, 0.9, 0.99)
SAME_START_S = 1.0
"""Two starts that are this close are one: servers round the time."""


@dataclass(frozen=True)
class CounterChanges:
    counters: Mapping[str, float]
    """What happened in the window, never negative."""
    restarts: int = 0
    """1 if the server restarted in the window, else 0."""


def since(before: Reading, after: Reading) -> CounterChanges:
    """What happened between two readings of one address."""
    if (
        before.server != after.server
        or _began_anew(before, after)
        or any(after.counters.get(name, 0.0) < value for name, value in before.counters.items())
    ):
        return CounterChanges(dict(after.counters), 1)
    return CounterChanges({name: value - before.counters.get(name, 0.0) for name, value in after.counters.items()})


def added(one: CounterChanges, other: CounterChanges) -> CounterChanges:
    """Both windows as one."""
    names = {**one.counters, **other.counters}
    return CounterChanges(
        {name: one.counters.get(name, 0.0) + other.counters.get(name, 0.0) for name in names}, one.restarts + other.restarts
    )


def row_of(seen: CounterChanges, after: Reading, seconds: float) -> dict[str, Any]:
    """The columns of serving_metrics that a window fills. seconds: between its readings."""
    counters = seen.counters
    finished = {
        name.removeprefix(FINISHED): round(value) for name, value in counters.items() if name.startswith(FINISHED) and value
    }
    if aborted := counters.get("aborted"):
        finished["abort"] = round(aborted)
    requests = counters.get("requests", sum(finished.values()) if _has(counters, FINISHED) else None)
    generated = counters.get("generation_tokens")
    return {
        "server": after.server,
        "seconds": seconds,
        "restarts": seen.restarts,
        "drafts": _whole(counters.get("drafts")),
        "draft_tokens": _whole(counters.get("draft_tokens")),
        "accepted_tokens": _accepted(counters, after.server),
        "accepted_per_position": _positions(counters),
        "prompt_tokens": _whole(counters.get("prompt_tokens")),
        "generation_tokens": _whole(generated),
        "tokens_per_second": None if generated is None or seconds <= 0 else generated / seconds,
        "requests": _whole(requests),
        "finished": sorted(finished.items()),
        "errors": _errors(counters, finished),
        "refused": _whole(counters.get(f"{HTTP}4", 0.0) if _has(counters, HTTP) else None),
        "preemptions": _whole(counters.get("preemptions")),
        "requests_running": after.gauges.get("requests_running"),
        "requests_waiting": after.gauges.get("requests_waiting"),
        "latency_ms": _latencies(counters),
    }


def _began_anew(before: Reading, after: Reading) -> bool:
    return before.began is not None and after.began is not None and abs(after.began - before.began) > SAME_START_S


def _accepted(counters: Mapping[str, float], server: str) -> int | None:
    if server != SGLANG:
        return _whole(counters.get("accepted_tokens"))
    if "drafts" not in counters:
        return None
    return max(0, round(counters.get("generation_tokens", 0.0) - counters.get("requests", 0.0) - counters["drafts"]))


def _positions(counters: Mapping[str, float]) -> list[int] | None:
    """Accepted tokens by their position in the draft, from the first one on."""
    positions = {
        int(place): value
        for name, value in counters.items()
        if name.startswith(POSITION) and (place := name.removeprefix(POSITION)).isdecimal()
    }
    return [round(positions.get(place, 0.0)) for place in range(max(positions) + 1)] if positions else None


def _errors(counters: Mapping[str, float], finished: Mapping[str, int]) -> int | None:
    """Requests that got no answer: HTTP 5xx where the server counts them, else those that ended with an error or were
    rejected."""
    if _has(counters, HTTP):
        return round(counters.get(f"{HTTP}5", 0.0))
    if not _has(counters, FINISHED):
        return None
    return sum(count for reason, count in finished.items() if reason == "error") + round(counters.get("rejected", 0.0))


def _latencies(counters: Mapping[str, float]) -> list[tuple[str, float]]:
    """Mean and quantiles in milliseconds, of the latencies that were measured in the window."""
    latencies = []
    for name in LATENCIES:
        count = counters.get(name + COUNT, 0.0)
        if count <= 0:
            continue
        if name + SUM in counters:
            latencies.append((f"{name}_mean", 1_000 * counters[name + SUM] / count))
        buckets = sorted(
            (math.inf if bound == "+Inf" else float(bound), value)
            for each, value in counters.items()
            if each.startswith(name + BUCKET) and _is_number(bound := each.removeprefix(name + BUCKET))
        )
        for share in QUANTILES:
            if (value := quantile(buckets, share)) is not None:
                latencies.append((f"{name}_p{share * 100:g}", 1_000 * value))
    return latencies


def quantile(buckets: list[tuple[float, float]], share: float) -> float | None:
    """The quantile of a histogram of (upper bound, count up to it), in order: linear within a bucket, as Prometheus'
    histogram_quantile. Beyond the last finite bound it is that bound. None: nothing was counted."""
    if not buckets or buckets[-1][1] <= 0:
        return None
    rank, below, low = share * buckets[-1][1], 0.0, 0.0
    for bound, up_to in buckets:
        if up_to >= rank and up_to > below:
            return low if math.isinf(bound) else low + (bound - low) * (rank - below) / (up_to - below)
        below, low = up_to, low if math.isinf(bound) else bound
    return low


def _has(counters: Mapping[str, float], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in counters)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
