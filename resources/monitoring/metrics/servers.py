"""What vLLM and SGLang call the numbers that are kept, and a reading of them from Prometheus' text format at /metrics.

Names of vLLM 0.32 (vllm/v1/metrics/loggers.py, vllm/v1/spec_decode/metrics.py) and of SGLang 0.5
(sglang/srt/metrics/collector.py); earlier names follow later ones.

SGLang counts finished requests, their tokens and their verifications, but no drafted and no accepted tokens. The first token of
an answer comes from the prompt's pass, and each verification emits its accepted tokens and one more, so
accepted tokens = generated tokens - requests - verifications.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/. Lines that are no sample are skipped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
    return Reading(
        server,
        counters,
        {name: _sum(measured) for name, theirs in _GAUGES.items() if (measured := _first(samples, theirs, ""))},
        _began(samples),
    )


def _began(samples: Samples) -> float | None:
    """When the process, or its first counter, began."""
    names = ("process_start_time_seconds", "vllm:generation_tokens_created", "sglang:generation_tokens_created")
    value = next((samples[name] for name in names if name in samples), None)
    return None if value is None else min(sample.value for sample in value)


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
