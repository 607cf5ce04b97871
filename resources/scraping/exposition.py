"""Reads Prometheus' text format, which inference servers answer at /metrics.

    samples = samples_of('vllm:num_requests_running{engine="0"} 2.0\\n')
    samples["vllm:num_requests_running"]         # [Sample({"engine": "0"}, 2.0)]

Format: https://prometheus.io/docs/instrumenting/exposition_formats/. Lines that are no sample are skipped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

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
    found: Samples = {}
    for line in text.splitlines():
        if line.startswith("#") or (match := _SAMPLE.fullmatch(line.strip())) is None:
            continue
        name, labels, value = match.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number):
            found.setdefault(name, []).append(Sample(_labels(labels or ""), number))
    return found


def _labels(text: str) -> dict[str, str]:
    return {name: _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
            for name, value in _LABEL.findall(text)}
