"""Ways of sampling in which acceptance is measured: the recipe's temperatures, and every prompt as its request was logged.

`as logged` uses temperature, top-p, top-k, min-p and penalties of each logged request, and the server's defaults (the target's
generation_config.json) for what it leaves out. Other parameters (stop, logit_bias, response_format, ...) are left out and
counted.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from model_ops.answering import PENALTIES, Sampling, ServedAnswers, server_defaults
from model_ops.decoding import Prompt
from model_ops.evaluation.measurement import AS_LOGGED, at_temperature


@dataclass(frozen=True)
class Mode:
    """One way to sample answers."""

    label: str
    """Value of a Measurement's `sampling`."""
    key: str
    """Part of a metric's name."""
    temperature: float | None
    """None if requests had several."""
    groups: list[tuple[Sampling, list[Prompt]]]
    same_as: str | None = None
    """Label of a mode with the same answers, measured before."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Prompts by parameter of their request that the decoder does not apply."""


def modes(target: Path, served: Path | None, prompts: Sequence[Prompt], temperatures: Sequence[float]) -> list[Mode]:
    """The modes of an evaluation; `as logged` is the last one. served: the dataset served_answers, if there is one.

    Raises ModelError if `served` cannot be read."""
    fixed = [
        Mode(at_temperature(each), f"t{each:g}", each, [(Sampling(temperature=each), list(prompts))]) for each in temperatures
    ]
    groups, left_out = _as_logged(target, served, prompts)
    same = next((mode.label for mode in fixed if [sampling for sampling, _ in groups] == [mode.groups[0][0]]), None)
    alone = groups[0][0].temperature if len({sampling.temperature for sampling, _ in groups}) == 1 else None
    return [*fixed, Mode(AS_LOGGED, "as_logged", alone, groups, same, left_out)]


def _as_logged(
    target: Path, served: Path | None, prompts: Sequence[Prompt]
) -> tuple[list[tuple[Sampling, list[Prompt]]], dict[str, int]]:
    log = None if served is None else ServedAnswers.read(served / "served.parquet", target)
    defaults, left_out = server_defaults(target), Counter[str]()
    groups: dict[Sampling, list[Prompt]] = {}
    for prompt in prompts:
        sampling = defaults if log is None else log.sampling(prompt.interaction_id)
        left_out.update(sampling.unsupported_names)
        groups.setdefault(_decoded(sampling), []).append(prompt)
    return sorted(groups.items(), key=lambda group: repr(group[0])), dict(sorted(left_out.items()))


def _decoded(sampling: Sampling) -> Sampling:
    """The parameters that the decoder applies. Truncation does nothing to greedy answers."""
    others = {name: value for name, value in json.loads(sampling.others).items() if name.removesuffix("_penalty") in PENALTIES}
    decoded = replace(sampling, max_tokens=None, others=json.dumps(others, sort_keys=True))
    return replace(decoded, truncation=Sampling().truncation) if decoded.temperature == 0 else decoded
