"""What a release drafts with: the recipe's word, or a decision from the evaluation's measurements."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from model_ops.drafting import NO_DRAFTING, Drafting, DraftingChoice, choose_by_replay, choose_in_server, with_drafter
from model_ops.evaluation import TARGET, WITH_DRAFTER, drafter_gain_low, drafter_low, measured_draftings, replayed_draftings
from model_ops.files import write_json
from resources.releases.settings import DraftingSettings

_FIGURE = re.compile(r"-?[\d.,]+(?:e[+-]?\d+)?(?: ?%| [A-Za-z/]{1,12})?(?: (?:to -?[\d.,]+(?:e[+-]?\d+)?|\([-\d., to]+\)))?")
_NONE = frozenset({"", "-", "not measured"})


@dataclass(frozen=True)
class ReportSection:
    """One table: title, column names, rows of ready text, and a sentence that says how to read it. shows_rows: whether it shows
    texts or ids of rows, so that it is no part of a model card. charts: HTML shows them between title and table."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    shows_rows: bool = False
    charts: Sequence[Markup] = ()

    @property
    def is_figure(self) -> list[bool]:
        """Which columns hold figures only, and are aligned at the right."""
        return [
            any(row[place] not in _NONE for row in self.rows)
            and all(row[place] in _NONE or _FIGURE.fullmatch(row[place]) for row in self.rows)
            for place in range(len(self.columns))
        ]


FILE = "drafting.json"
ENDS_IN = " in a server"
"""How keys of the report's `not_measured` end that name a form."""


def decide_drafting(
    settings: DraftingSettings,
    report: Mapping[str, Any],
    speed: Mapping[str, Any],
    drafter: str | None,
    num_speculative_tokens: int,
) -> DraftingChoice:
    """The decision, with everything that was measured. report, speed: contents of report.json and speed.json. drafter: its name
    in the report; None without one. num_speculative_tokens: the recipe's."""
    asked, measured = report.get("in_server", {}), measured_draftings(speed.get("in_server", {}).get("forms", {}))
    replayed = replayed_draftings(report, drafter)
    plain = any(each.drafting == NO_DRAFTING for each in measured)
    if plain:
        server = f"{asked['kind']} {asked['version'] or ''}".strip()
        choice = choose_in_server(measured, settings.concurrency, settings.p99_above, server)
    else:
        choice = choose_by_replay(replayed, drafter_low(report, drafter), drafter_gain_low(report, drafter))
    choice.replayed = replayed
    choice.not_measured = {
        name.removesuffix(ENDS_IN): why
        for name, why in report.get("not_measured", {}).items()
        if name.endswith(ENDS_IN) and name.startswith(TARGET)
    }
    if asked and not plain:
        choice.reason += (
            f". {asked['kind']} was asked and did not serve the model: {choice.not_measured.get(TARGET, 'no speed')}"
        )
    if settings.choose == "measured":
        return choice
    forced = with_drafter(num_speculative_tokens) if settings.choose == "drafter" and drafter else NO_DRAFTING
    said = f"{forced.label}: the recipe says `release.drafting.choose: {settings.choose}`"
    if settings.choose == "drafter" and drafter is None:
        said += ", and there is no drafter"
    if plain and forced != choice.drafting:
        said += f". Measured, it would be {choice.reason}"
    return choice.model_copy(update={"drafting": forced, "decided_by": "recipe", "reason": said})


def form_of(drafting: Drafting, num_speculative_tokens: int) -> str:
    """The evaluation's name of the served model with a drafting. num_speculative_tokens: the recipe's."""
    if drafting == NO_DRAFTING:
        return TARGET
    return WITH_DRAFTER if drafting == with_drafter(num_speculative_tokens) else f"{TARGET} with {drafting.label}"


def write_choice(output: Path, choice: DraftingChoice) -> None:
    """Writes drafting.json."""
    write_json(output / FILE, choice.model_dump(mode="json"))


def read_choice(directory: Path) -> DraftingChoice | None:
    """The decision of a release; None if it cannot be read."""
    try:
        return DraftingChoice.model_validate_json((directory / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def drafting_sections(choice: DraftingChoice) -> list[ReportSection]:
    """The decision, and its curve over concurrency or over K."""
    columns = ["drafting", "K", "at a time", "tokens/s", "over none", "p99 (s)", "over none", "tau", "tau needed"]
    if choice.curve:
        rows = [
            [
                point.label + (" (served)" if point.label == choice.drafting.label else ""),
                *map(str, (point.num_speculative_tokens, point.concurrency)),
                f"{point.tokens_per_second:z,.0f}",
                *(f"{each:z.2f}" for each in (point.ratio, point.p99_s, point.p99_ratio)),
                *(f"{each:z.2f}" if each else "" for each in (point.tau, point.tau_needed)),
            ]
            for point in choice.curve
        ]
        ends = " ".join(f"{each.label} {each.says}." for each in choice.break_even)
        note = (
            f"{_sentence(choice.reason)} Measured in {choice.server} with the traffic's own prompts and sampling; these "
            f"figures depend on the machine. Drafting pays where tau is above tau needed. {ends}"
        )
    else:
        columns = ["drafting", "K", "tau"]
        own = (choice.drafting.method, choice.drafting.num_speculative_tokens)
        rows = []
        for each in choice.replayed:
            served = " (served)" if own == (each.method, each.num_speculative_tokens) else ""
            rows.append([each.method + served, str(each.num_speculative_tokens), f"{each.tau:z.3f}"])
        note = (
            f"{_sentence(choice.reason)} tau: tokens emitted per target forward pass, as in the table of acceptance lengths; "
            "lookups at their best K on validation answers, the drafter also at fewer drafts than it was measured with."
        )
    missing = " ".join(f"Not measured: {name}: {why}." for name, why in choice.not_measured.items())
    rows = rows or [[choice.drafting.label, *[""] * (len(columns) - 1)]]
    return [ReportSection("What is drafted with", columns, rows, f"{note} {missing}".strip())]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
