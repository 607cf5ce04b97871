"""Sections of a release's report about a real server: what it loaded, said and took, and some of its answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from model_ops.evaluation import REFERENCE, TARGET, WITH_DRAFTER, Measurement, find, in_a_server, measurements_of
from resources.records import visible
from resources.releases import ReportSection

TITLE = "In a real server"
FORMS = {REFERENCE: "unquantized", TARGET: "served", WITH_DRAFTER: "served with its drafter"}
"""Forms that a server is started with, as the page calls them."""
RATIOS = {TARGET: "served / unquantized", WITH_DRAFTER: "with its drafter / without"}


def server_sections(report: Mapping[str, Any], speed: Mapping[str, Any]) -> list[ReportSection]:
    """The sections, from the content of a report.json and its speed.json."""
    asked, speed = report.get("in_server", {}), speed.get("in_server", {})
    if not asked:
        return [
            ReportSection(
                TITLE,
                ["model", "state"],
                [["served", "no server was asked for"]],
                "The recipe names no server in evaluation.server.",
            )
        ]
    measured = measurements_of(report)
    rows = [_form(name, form, speed.get("forms", {}).get(name), measured) for name, form in asked["forms"].items()]
    columns = ["model", "state", "distance (nats/token)", "greedy tokens that agree", "start (s)", "memory (GB)"]
    sections = [ReportSection(TITLE, columns, rows, _note(asked, report.get("not_measured", {})))]
    if speed:
        sections.append(_speed(asked, speed))
    samples = [[sample["row_id"], visible(" ".join(sample["text"].split()))] for sample in asked["samples"]]
    if samples:
        sections.append(
            ReportSection(
                "What the server answered",
                ["row", "beginning of the served model's greedy answer"],
                samples,
                "Held-out rows by id: millrace show finds their text.",
                shows_rows=True,
            )
        )
    return sections


def _named(form: str) -> str:
    """`target with n-gram lookup, K = 5` as `served with n-gram lookup, K = 5`."""
    return FORMS.get(form, form.replace(TARGET, FORMS[TARGET], 1))


def _form(name: str, form: Mapping[str, Any], record: Mapping[str, Any] | None, measured: Sequence[Measurement]) -> list[str]:
    """The row of one form. record: its speed; None if it was not served."""
    distance, agreement = (find(measured, what, of=name) for what in ("served_distance", "served_agreement"))
    memory_mb = record["memory_mb"] if record else None
    return [
        _named(name),
        "loaded" if form["loaded"] else "did not load",
        _with_interval(distance, "4f"),
        _with_interval(agreement, "4f"),
        f"{record['started_s']:.0f}" if record else "",
        "" if memory_mb is None else f"{memory_mb / 1_000:.1f}",
    ]


def _note(asked: Mapping[str, Any], not_measured: Mapping[str, str]) -> str:
    started = f", started with {' '.join(asked['arguments'])}" if asked["arguments"] else ""
    said = [f"{asked['kind']} {asked['version'] or ''}".strip() + started]
    said += [f"{_named(name)}: {why}" for name in asked["forms"] if (why := not_measured.get(in_a_server(name)))]
    middle = f" (median {asked['median_distance']:.3f})" if "median_distance" in asked else ""
    return (
        f"{'. '.join(said)}. Distance: mean absolute difference of the log-probabilities of held-out answers' tokens, in the "
        f"server and by the project's own layers in float32{middle}. A greedy token of the server agrees if own layers rank it "
        f"first, or at most {asked['tie_nats']:g} nats behind. Memory: resident host memory of the server's processes."
        f"{_differences(asked.get('greedy_differences', {}))}"
    )


def _differences(differences: Mapping[str, Mapping[str, Any]]) -> str:
    """Sentences on greedy answers with a drafting that are not those without."""
    said = [
        f" Greedy answers {_named(name)}: {each['identical']} of {each['prompts']} are those without drafting, "
        f"{each['ties']} differ first where the two tokens tie in bfloat16, {len(each['others'])} elsewhere."
        for name, each in differences.items()
    ]
    return "".join(said)


def _speed(asked: Mapping[str, Any], speed: Mapping[str, Any]) -> ReportSection:
    """tokens/s of each form at each concurrency, and ratios."""
    forms = speed["forms"]
    at = list(dict.fromkeys(concurrency for form in forms.values() for concurrency in form["tokens_per_second"]))
    drafted = {name: f"{form['tau']:.2f}" if form.get("tau") else "" for name, form in asked["forms"].items()}
    rows = [
        [
            _named(name),
            *(
                f"{rate['median']:,.0f} ({rate['lowest']:,.0f} to {rate['highest']:,.0f})"
                for each in at
                for rate in [form["tokens_per_second"][each]]
            ),
            drafted[name],
        ]
        for name, form in forms.items()
    ]
    rows += [[RATIOS[name], *(f"{ratios[each]:.2f}" for each in at), ""] for name, ratios in speed["ratios"].items()]
    return ReportSection(
        "Tokens/s in that server",
        ["model", *(f"{each} at a time" for each in at), "tau"],
        rows,
        "Median (lowest to highest) of passes with that many requests at a time, each answered greedily with "
        f"{asked['max_new_tokens']} tokens; prompts had been read before. These figures depend on the machine and on what else "
        "ran on it. tau: tokens emitted per forward pass of the target, as the server counted.",
    )


def _with_interval(measured: Measurement | None, digits: str) -> str:
    """`0.0219 (0.0200 to 0.0238)`; "" without a measurement."""
    if measured is None:
        return ""
    return f"{measured.value:.{digits}}" + (
        "" if measured.low is None else f" ({measured.low:.{digits}} to {measured.high:.{digits}})"
    )
