"""Model cards: README.md in Hugging Face's form, with measurements as evaluation results.

Metadata: base_model, license, language, datasets, tags, model-index. Form:
https://github.com/huggingface/hub-docs/blob/main/modelcard.md. The card shows no text and no id of a row."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, select_autoescape

from model_ops.evaluation import Measurement
from model_ops.files import write_text
from resources.releasing.release_facts import ReleaseFacts

TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = _cell
    return environment.get_template(template).render(**values)


def _cell(text: str) -> str:
    """A cell of a Markdown table: on one line, without what ends a cell or begins a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


TASK = "text-generation"
LICENCE_ID = re.compile(r"[a-z0-9][a-z0-9.+-]*")
NAMES = {
    "loss": "Loss (nats per token)",
    "loss_increase": "Loss increase (nats per token)",
    "recovery": "Recovery",
    "divergence": "KL divergence (nats per token)",
    "agreement": "Agreement of the likeliest token",
    "acceptance_length": "Acceptance length",
    "acceptance_gain": "Acceptance gain",
    "accuracy": "Accuracy",
    "accuracy_gain": "Accuracy gain",
    "accuracy_kept": "Accuracy kept",
    "solved": "Items with a right answer",
    "cut": "Answers cut by the limit",
    "speed_up_estimate": "Estimated speed-up",
    "served_distance": "Distance in a server (nats per token)",
    "served_agreement": "Agreement in a server",
    "preference_accuracy": "Preference accuracy",
    "rft_gain": "Gain on held-out prompts",
    "win_rate": "Win rate",
    "length_ratio": "Ratio of lengths",
    "divergence_from_parent": "KL divergence (nats per token)",
}
OF_THE_RELEASE = ("target", "")


def write_card(output: Path, workload: str, facts: ReleaseFacts, measurements: Iterable[Measurement], body: str) -> None:
    metadata = yaml.safe_dump(card_metadata(workload, facts, measurements), sort_keys=False, allow_unicode=True)
    write_text(output / "README.md", f"---\n{metadata}---\n\n{body}")


def card_metadata(workload: str, facts: ReleaseFacts, measurements: Iterable[Measurement]) -> dict[str, Any]:
    """The YAML between the lines `---`. Measurements of other models, such as the base, are left out."""
    metadata: dict[str, Any] = {"pipeline_tag": TASK, "library_name": "peft" if facts.adapter else "transformers"}
    if facts.languages:
        metadata["language"] = facts.languages
    metadata |= _licence(facts)
    if facts.base_models:
        metadata["base_model"] = facts.base_models
        metadata |= {"base_model_relation": facts.relation} if facts.relation else {}
    if facts.datasets:
        metadata["datasets"] = facts.datasets
    drafter = facts.drafter.partition(",")[0]
    metadata["tags"] = [
        "millrace",
        *([facts.scheme] if facts.scheme else []),
        *(["speculative-decoding", drafter] if drafter != "none" else []),
    ]
    chosen = [each for each in measurements if each.of in (*OF_THE_RELEASE, drafter) or each.of.startswith("target ")]
    if chosen:
        metadata["model-index"] = [
            {
                "name": f"{workload}-{facts.version}",
                "results": [
                    _result(workload, facts, on, [each for each in chosen if each.on == on])
                    for on in dict.fromkeys(each.on for each in chosen)
                ],
            }
        ]
    return metadata


def _licence(facts: ReleaseFacts) -> dict[str, str]:
    """`license` where all that is stated is one id of the Hub; else `other` with the names. Nothing where nothing is stated."""
    stated = list(dict.fromkeys(facts.licences.values()))
    if not stated:
        return {}
    if len(stated) == 1 and LICENCE_ID.fullmatch(stated[0].lower()):
        return {"license": stated[0].lower()}
    return {"license": "other", "license_name": ", ".join(stated)}


def _result(workload: str, facts: ReleaseFacts, on: str, measured: list[Measurement]) -> dict[str, Any]:
    """The evaluation result of one suite or split."""
    return {
        "task": {"type": TASK},
        "dataset": {"name": on, "type": f"{workload}/{on.replace(' ', '_')}"},
        "metrics": [_metric(facts, each) for each in measured],
    }


def _metric(facts: ReleaseFacts, measured: Measurement) -> dict[str, Any]:
    """What it was compared with, sampling, K and the interval are in the metric's arguments."""
    given: dict[str, Any] = {"n": measured.n, "counted": measured.counted}
    given |= {name: value for name, value in (("against", measured.against), ("sampling", measured.sampling)) if value}
    if measured.low is not None and measured.high is not None:
        given |= {"low_95": _rounded(measured.low), "high_95": _rounded(measured.high)}
    if measured.what.startswith("acceptance"):
        given["num_speculative_tokens"] = facts.k
    against = f" against {measured.against}" if measured.against else ""
    sampled = f", {measured.sampling}" if measured.sampling else ""
    return {
        "type": measured.what,
        "value": _rounded(measured.value),
        "name": f"{NAMES[measured.what]}{against}{sampled}",
        "args": given,
    }


def _rounded(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")
