"""Sampling parameters of a logged request; what it leaves out is the server's default, the target's generation_config.json.

`others` holds parameters that change the distribution and are sent to an endpoint only, `penalties` among them done here too.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_ops.decoding import NO_PENALTIES, NONE, Penalties, Truncation

NEUTRAL: dict[str, Any] = {
    "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "logit_bias": {}, "stop": [],
    "stop_token_ids": [], "bad_words": [], "min_tokens": 0, "ignore_eos": False, "guided_json": None, "guided_regex": None,
    "guided_choice": None, "guided_grammar": None, "structured_outputs": None, "use_beam_search": False, "typical_p": 1,
    "allowed_token_ids": [], "length_penalty": 1,
}  # fmt: skip
"""Parameters besides temperature and truncation that change sampling, each with its neutral value."""

LIMITS = ("max_completion_tokens", "max_tokens", "max_new_tokens", "max_output_tokens")

PENALTIES = {"repetition": (1e-6, 1e6), "presence": (-2, 2), "frequency": (-2, 2)}
"""Penalties that the decoder applies, each with the values that servers accept."""

LEAST_TOP_P = 1e-6
"""Value for top_p 0, which some APIs accept for greedy sampling; servers want a number above 0."""

GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy, as in vLLM."""


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of one request."""

    temperature: float = 1.0
    truncation: Truncation = NONE
    max_tokens: int | None = None
    others: str = "{}"
    """Further parameters that change the distribution: name and value (JSON text)."""

    @property
    def other_names(self) -> list[str]:
        return sorted(json.loads(self.others))

    @property
    def penalties(self) -> Penalties:
        """The penalties on repeated tokens."""
        said = json.loads(self.others)
        return Penalties(
            **{
                name: _or(_number(said.get(f"{name}_penalty"), least, most), getattr(NO_PENALTIES, name))
                for name, (least, most) in PENALTIES.items()
            }
        )

    @property
    def unsupported_names(self) -> list[str]:
        """Parameters that the project's own decoder does not support."""
        return [name for name in self.other_names if name.removesuffix("_penalty") not in PENALTIES]

    def as_request(self) -> dict[str, Any]:
        """Fields of a request to a server. Neutral values are sent too: a server fills in missing ones from its
        generation_config.json."""
        truncation = self.truncation
        return {
            "repetition_penalty": 1,
            "top_k": truncation.top_k or -1,
            "min_p": truncation.min_p,
            **json.loads(self.others),
            "temperature": self.temperature,
            "top_p": truncation.top_p,
        }

    def as_json(self) -> str:
        """The parameters as JSON, for a row of answers."""
        parameters = {"temperature": self.temperature, **self.truncation.as_dict(), **json.loads(self.others)}
        return json.dumps(parameters, sort_keys=True)


def server_defaults(target: Path) -> Sampling:
    """The server's defaults, from the target's generation_config.json."""
    path = target / "generation_config.json"
    try:
        content = json.loads(path.read_text()) if path.exists() else {}
    except ValueError:
        content = {}
    return sampling_of(content if isinstance(content, dict) else {}, Sampling())


def sampling_of(params: str | dict[str, Any] | None, defaults: Sampling) -> Sampling:
    """The parameters of one logged request. A value that should be a number and is not one counts as missing."""
    try:
        fields = json.loads(params) if isinstance(params, str) else dict(params or {})
    except ValueError:
        fields = {}
    fields = fields if isinstance(fields, dict) else {}
    truncation = Truncation(
        top_p=max(LEAST_TOP_P, _or(_number(fields.get("top_p"), 0, 1), defaults.truncation.top_p)),
        top_k=_whole(fields.get("top_k"), defaults.truncation.top_k),
        min_p=_or(_number(fields.get("min_p"), 0, 1), defaults.truncation.min_p),
    )
    others = {**json.loads(defaults.others), **{name: fields[name] for name in NEUTRAL if fields.get(name) is not None}}
    others = {
        name: value
        for name, value in others.items()
        if not (value == NEUTRAL[name] or (isinstance(NEUTRAL[name], list | dict) and not value))
    }
    shape = fields.get("response_format")
    if isinstance(shape, dict) and shape.get("type") not in (None, "text"):
        others["response_format"] = shape
    if fields.get("tool_choice") == "required" or isinstance(fields.get("tool_choice"), dict):
        others["tool_choice"] = fields["tool_choice"]
    limits = [limit for name in LIMITS if (limit := _whole(fields.get(name), 0)) > 0]
    temperature = _or(_number(fields.get("temperature"), 0, 100), defaults.temperature)
    return Sampling(
        temperature if temperature >= GREEDY_BELOW else 0.0,
        truncation,
        limits[0] if limits else defaults.max_tokens,
        json.dumps(others, sort_keys=True),
    )


def _number(value: Any, least: float, most: float) -> float | None:
    """A finite number within bounds, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if least <= value <= most else None


def _whole(value: Any, default: int) -> int:
    """A whole number; 0 for -1, which servers read as 'no limit'."""
    if isinstance(value, bool) or not isinstance(value, int):
        return default
    return max(0, value)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
