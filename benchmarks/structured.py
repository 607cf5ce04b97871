"""Validity of structured outputs in vLLM, with and without the server's constraints, with and without the drafter.

    python -m benchmarks.structured --lake demo/quick/lake       # the demo's newest release in vLLM's CPU build

Requests of each kind (JSON schema, tool call, regular expression, grammar) at temperature 1 with a penalty on repetition,
answered freely and under the constraint, by the target alone and with its drafter. valid: share of answers that keep to the
constraint. cut: share of constrained answers that the limit of TOKENS tokens cut, which are not valid. same_greedy: share of
constrained greedy answers that are the same with the drafter. tau: tokens per forward pass of the target, constrained and free,
as the server counts.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import record
from benchmarks.vllm_environment import vllm_python
from benchmarks.vllm_server import vllm_server
from model_ops.completions.served import ServedModel
from model_ops.evaluation.smoke.answers import SmokeClient, SmokePrompt
from model_ops.evaluation.smoke.smoke_set import TOOL, calls_tool, follows, schema_format
from model_ops.serving.command import words_of
from model_ops.speculators.registry import ARCHITECTURES
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import read_manifest
from resources.releases.release import Release, read_release

PROMPTS, TOKENS, MODEL = 20, 192, "served"
WORDS = [
    "--max-model-len",
    "512",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "hermes",
    "--structured-outputs-config",
    '{"backend": "xgrammar", "disable_any_whitespace": true}',
]
SAMPLED = {"temperature": 1.0, "frequency_penalty": 2.0}
"""A model that never saw JSON writes white space until its limit where that is allowed; the penalty ends it."""
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "size", "tags", "owner"],
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{3,8}$"},
        "size": {"type": "integer", "minimum": 1, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "sold"]}, "minItems": 1, "maxItems": 3},
        "owner": {
            "type": "object",
            "additionalProperties": False,
            "required": ["active"],
            "properties": {"active": {"type": "boolean"}},
        },
    },
}
PATTERN = r"[A-Z][a-z]{2,9} is [0-9]{1,3} (km|m) away\."
GRAMMAR = 'root ::= term ("+" term | "-" term) \nterm ::= number | "(" number "*" number ")" \nnumber ::= [1-9] [0-9]?\n'


@dataclass(frozen=True)
class Kind:
    """ask: what each prompt asks for. constraint: fields of the request. holds: whether a choice keeps to it."""

    ask: str
    constraint: dict[str, Any]
    holds: Callable[[dict[str, Any]], bool]


def _text(choice: dict[str, Any]) -> str:
    return choice["message"].get("content") or ""


def _is_sum(text: str) -> bool:
    """Whether GRAMMAR makes this text, by an expression of Python."""
    number = "[1-9][0-9]?"
    term = rf"(?:{number}|\({number}\*{number}\))"
    return re.fullmatch(rf"{term}[+-]{term}", text) is not None


KINDS = {
    "json_schema": Kind(
        "Describe item {} as JSON: name, size, tags, owner.",
        {"response_format": schema_format(SCHEMA)},
        lambda choice: follows(SCHEMA, _text(choice)),
    ),
    "tool_call": Kind(
        "Lamp {} is wrong. Set its colour.",
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": TOOL["function"]["name"]}}},
        calls_tool,
    ),
    "regex": Kind(
        "How far is town {}?",
        {"structured_outputs": {"regex": PATTERN}},
        lambda choice: re.fullmatch(PATTERN, _text(choice)) is not None,
    ),
    "grammar": Kind("Write sum {}.", {"structured_outputs": {"grammar": GRAMMAR}}, lambda choice: _is_sum(_text(choice))),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lake", type=Path, required=True, help="lake of a finished demo, such as demo/quick/lake")
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="requests of each kind")
    given = parser.parse_args()
    lake = LakeLayout.open(given.lake, create=False)
    made = {path.parent: read_manifest(path.parent).created_at for path in lake.root.glob("releases/*/*/manifest.json")}
    release = read_release(max(made, key=lambda path: made[path]))
    measured = {}
    for drafts in (False, True):
        with _server(lake, release, drafts) as server:
            measured[drafts] = {name: _measured(server, kind, given.prompts) for name, kind in KINDS.items()}
    record(
        "structured",
        {"prompts": given.prompts, "kinds": {name: _compared(measured[False][name], measured[True][name]) for name in KINDS}},
    )


@contextmanager
def _server(lake: LakeLayout, release: Release, drafts: bool) -> Iterator[ServedModel]:
    serving, part = ARCHITECTURES[release.architecture].serving, release.speculator
    drafter = str(lake.root / part.path) if drafts and part else None
    target, *words = words_of(
        "vllm", str(lake.root / release.target.path), MODEL, drafter, serving, release.num_speculative_tokens
    )
    with vllm_server(vllm_python(), target, *words, *WORDS, folder=lake.root) as server:
        yield server


def _measured(server: ServedModel, kind: Kind, count: int) -> dict[str, Any]:
    """Answers of one server to one kind."""
    asking = SmokeClient(server.url, MODEL, 300)
    prompts = [SmokePrompt("", [{"role": "user", "content": kind.ask.format(number)}]) for number in range(count)]

    def answers(**more: Any) -> tuple[list[dict[str, Any]], float | None]:
        before = server.acceptance()
        found = [
            asking.chat(prompt, **{**SAMPLED, "seed": seed, "max_tokens": TOKENS, **more})
            for seed, prompt in enumerate(prompts)
        ]
        after = server.acceptance()
        return found, after.since(before).tau if after and before and after.drafts > before.drafts else None

    free, tau_free = answers()
    kept, tau = answers(**kind.constraint)
    greedy, _ = answers(**kind.constraint, temperature=0.0)
    return {
        "free": _share(free, kind.holds),
        "valid": _share(kept, kind.holds),
        "tau": tau,
        "tau_free": tau_free,
        "cut": _share(kept, lambda choice: choice["finish_reason"] == "length"),
        "greedy": [
            _text(choice) or [call["function"] for call in choice["message"].get("tool_calls") or []] for choice in greedy
        ],
    }


def _compared(alone: dict[str, Any], drafted: dict[str, Any]) -> dict[str, Any]:
    same = sum(one == other for one, other in zip(alone["greedy"], drafted["greedy"], strict=True)) / len(alone["greedy"])
    return {
        "valid_free": alone["free"],
        "valid": alone["valid"],
        "valid_drafted": drafted["valid"],
        "cut": alone["cut"],
        "cut_drafted": drafted["cut"],
        "same_greedy": same,
        "tau": drafted["tau"],
        "tau_free": drafted["tau_free"],
    }


def _share(choices: list[dict[str, Any]], holds: Callable[[dict[str, Any]], bool]) -> float:
    return sum(map(holds, choices)) / len(choices)


if __name__ == "__main__":
    main()
