"""What vLLM and SGLang call the numbers that are kept, and a reading of them from Prometheus' text format at /metrics.

Names of vLLM 0.32 (vllm/v1/metrics/loggers.py, vllm/v1/spec_decode/metrics.py) and of SGLang 0.5
(sglang/srt/metrics/collector.py); earlier names follow later ones.

SGLang counts finished requests, their tokens and their verifications, but no drafted and no accepted tokens. The first token of
an answer comes from the prompt's pass, and each verification emits its accepted tokens and one more, so
accepted tokens = generated tokens - requests - verifications.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/. Lines that are no sample are skipped."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

VLLM, SGLANG = "vllm", "sglang"

POSITION = "accepted_at/"
"""Prefix of the counters of accepted tokens by position."""
FINISHED = "finished/"
"""Prefix of the counters of requests by the reason for which they ended."""
HTTP = "http/"
"""Prefix of the counters of HTTP answers of /v1/ by the first digit of their status."""
BUCKET, SUM, COUNT = "/le/", "/sum", "/count"
"""What follows a latency in the names of the counters of its histogram."""

_COUNTERS = {
    "drafts": ("vllm:spec_decode_num_drafts", "sglang:spec_verify_calls"),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens",),
    "prompt_tokens": ("vllm:prompt_tokens", "sglang:prompt_tokens"),
    "generation_tokens": ("vllm:generation_tokens", "sglang:generation_tokens"),
    "preemptions": ("vllm:num_preemptions", "sglang:num_retracted_reqs"),
    "rejected": ("vllm:admission_rejections",),
    "requests": ("sglang:num_requests",),
    "aborted": ("sglang:num_aborted_requests",),
}
_GAUGES = {
    "requests_running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "requests_waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
}
LATENCIES = {
    "ttft": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    "inter_token": (
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "sglang:inter_token_latency_seconds",
        "sglang:time_per_output_token_seconds",
    ),
    "e2e": ("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"),
    "queue": ("vllm:request_queue_time_seconds", "sglang:queue_time_seconds"),
}
"""Histograms of seconds, by their name in `latency_ms`."""


@dataclass(frozen=True)
class Reading:
    """What a server reported at one moment."""

    server: str
    counters: Mapping[str, float] = field(default_factory=dict)
    """Counters since its start."""
    gauges: Mapping[str, float] = field(default_factory=dict)
    """Gauges at this moment."""
    began: float | None = None
    """Identifies the server process, in seconds since 1970; None if the server reports nothing of the kind."""


def reading_of(samples: Samples) -> Reading | None:
    """The reading of a vLLM or SGLang server; None for the metrics of another program."""
    server = next((name for name in (VLLM, SGLANG) if any(each.startswith(f"{name}:") for each in samples)), None)
    if server is None:
        return None
    counters = {name: _sum(measured) for name, theirs in _COUNTERS.items() if (measured := _first(samples, theirs, "_total"))}
    for sample in _first(samples, ("vllm:spec_decode_num_accepted_tokens_per_pos",), "_total"):
        _add(counters, POSITION + sample.labels.get("position", ""), sample.value)
    for sample in _first(samples, ("vllm:request_success",), "_total"):
        _add(counters, FINISHED + sample.labels.get("finished_reason", "unknown"), sample.value)
    for sample in samples.get("http_requests_total", []):
        if sample.labels.get("handler", "").startswith("/v1/"):
            _add(counters, HTTP + sample.labels.get("status", "?")[:1], sample.value)
    for name, theirs in LATENCIES.items():
        for sample in _first(samples, theirs, "_bucket"):
            _add(counters, name + BUCKET + sample.labels.get("le", ""), sample.value)
        for part, ending in ((SUM, "_sum"), (COUNT, "_count")):
            if measured := _first(samples, theirs, ending):
                counters[name + part] = _sum(measured)
    gauges = {name: _sum(measured) for name, theirs in _GAUGES.items() if (measured := _first(samples, theirs, ""))}
    # when the process, or its first counter, began
    starts = ("process_start_time_seconds", "vllm:generation_tokens_created", "sglang:generation_tokens_created")
    began = min((sample.value for sample in _first(samples, starts, "")), default=None)
    return Reading(server, counters, gauges, began)


def _first(samples: Samples, names: Iterable[str], ending: str) -> list[Sample]:
    """Samples under the first of these names that there is."""
    return next((samples[name + ending] for name in names if name + ending in samples), [])


def _sum(samples: Iterable[Sample]) -> float:
    return sum(sample.value for sample in samples)


def _add(counters: dict[str, float], name: str, value: float) -> None:
    counters[name] = counters.get(name, 0.0) + value


_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Sample:
    """One number with its labels."""

    labels: Mapping[str, str]
    value: float


Samples = dict[str, list[Sample]]
"""The samples of a text by their name."""


def samples_of(text: str) -> Samples:
    """Every sample with a finite value, or infinity in a bucket's bound, by name; in the order of the text."""
    samples: Samples = {}
    for line in text.splitlines():
        if line.startswith("#") or (match := _SAMPLE.fullmatch(line.strip())) is None:
            continue
        name, labels, value = match.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number):
            samples.setdefault(name, []).append(Sample(_labels(labels or ""), number))
    return samples


def _labels(text: str) -> dict[str, str]:
    return {
        name: _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], value) for name, value in _LABEL.findall(text)
    }


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
    fell = any(after.counters.get(name, 0.0) < value for name, value in before.counters.items())
    starts = before.began, after.began
    anew = starts[0] is not None and starts[1] is not None and abs(starts[1] - starts[0]) > SAME_START_S
    if before.server != after.server or anew or fell:
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
