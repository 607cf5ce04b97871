"""The page that a person reads before approving a release: approval.html, one file without network.

Verdict and gates first; then candidate against champion: scores with intervals on last week's held-out rows, acceptance, size,
latency, cost and erased rows, what changed, and the held-out prompts where the candidate does worst: the logged answer, its
own, and the champion's or, for a first release, the base's. The page shows texts of users, so an erasure rewrites it
(resources/erasing/sought.py), and a signature leaves it out."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_ops.evaluation import AS_LOGGED, CHAMPION, Measurement, find, measurements_of
from model_ops.files import write_text
from resources.artefacts import rows_erased_from
from resources.lake import LakeLayout
from resources.manifests import APPROVAL_PAGE, Manifest, ManifestError, read_manifest
from resources.records import visible
from resources.releases import Release, ReleaseError, ReportSection, read_release
from resources.releasing.champion import Champion
from resources.releasing.model_card import render
from resources.releasing.server_sections import FORMS, keeps_rollouts, rollout_samples
from resources.releasing.summary import Summary

SIDE_BY_SIDE = "side_by_side.jsonl"
"""Of an evaluation report (model_ops/evaluation/side_by_side.py)."""
PREFERENCE_PAIRS = "preference_pairs.jsonl"
"""Of an evaluation report (model_ops/evaluation/preference_change.py)."""
PASSED_ANSWERS = "passed_answers.jsonl"
"""Of an evaluation report (model_ops/evaluation/reward_change.py)."""
WORST = 20
"""So many of its rows are sorted by harm; the others are gains (MOST of model_ops/evaluation/side_by_side.py)."""
_THAN = (
    "Sorted by harm: by how many nats per token the release finds the logged answer less likely than {0} does (above 0: "
    "worse). Answers of the release that are empty or repeat themselves come first, where {0} does better. All "
    "answer greedily."
)
HARM = {
    CHAMPION: _THAN.format("the champion"),
    "base": _THAN.format("its base"),
    None: "Sorted by harm: how unlikely the release finds the logged answer, in nats per token (there is no other model "
    "to compare with). It answers greedily.",
}
COSTS = "Cost, size, latency"
NONE = "not measured"


@dataclass(frozen=True)
class _Side:
    """One release: its manifests of target and drafter, its report and its records of speed; empty where they are gone."""

    served: list[Manifest] = field(default_factory=list)
    report: Mapping[str, Any] = field(default_factory=dict)
    speed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measurements(self) -> list[Measurement]:
        return measurements_of(self.report) if self.report else []


def write_approval_page(
    output: Path, lake: LakeLayout, summary: Summary, release: Release, evaluation: Path, champion: Champion | None
) -> None:
    """champion: the release that the candidate is compared with; None: there is none."""
    candidate = _side(lake, release, evaluation)
    former = _former(lake, release.workload, champion.release) if champion else _Side()
    beside = candidate.report.get("side_by_side", {})
    other = beside.get("against")
    sections = summary.sections()[:1] if summary.gates else []
    sections += [_scores(candidate, beside, champion), _costs(lake, candidate, former, champion)]
    sections += summary.learning
    if summary.facts is not None:
        sections.append(summary.facts.changed())
    rows = _rows(evaluation / SIDE_BY_SIDE)
    write_text(
        output / APPROVAL_PAGE,
        render(
            "approval.html.j2",
            summary=summary,
            champion=champion.release if champion else None,
            sections=sections,
            beside=beside,
            other=other,
            harm=HARM.get(other, HARM[None]),
            why=candidate.report.get("not_measured", {}).get("answers side by side", ""),
            worst=rows[:WORST],
            gains=rows[WORST:],
            pairs=_rows(evaluation / PREFERENCE_PAIRS),
            passed=_rows(evaluation / PASSED_ANSWERS),
            rollouts=[
                row for name, model in summary.models.items() if keeps_rollouts(name) for row in rollout_samples(lake, model)
            ],
        ),
    )


def _side(lake: LakeLayout, release: Release, evaluation: Path) -> _Side:
    served = []
    for part in (release.target, release.speculator):
        if part is None:
            continue
        try:
            served.append(read_manifest(lake.root / part.path))
        except ManifestError:
            continue  # a champion whose weights were removed still has its report
    return _Side(served, _json(evaluation / "report.json"), _json(evaluation / "speed.json"))


def _former(lake: LakeLayout, workload: str, version: str) -> _Side:
    directory = lake.artefacts("release") / workload / version
    try:
        release, manifest = read_release(directory), read_manifest(directory)
    except (ManifestError, ReleaseError):
        return _Side()
    report = next((item for item in manifest.inputs if item.name.endswith("/evaluation_report")), None)
    place = lake.artefacts("dataset") / report.name / report.version if report else directory / "gone"
    return _side(lake, release, place)


def _scores(candidate: _Side, beside: Mapping[str, Any], champion: Champion | None) -> ReportSection:
    """Held-out loss of last week and of all rows, every suite, and acceptance of both drafters, on the same rows."""
    rows, measurements = [], candidate.measurements

    def add(title: str, gain: Measurement, digits: int, both: Iterable[Measurement | None]) -> None:
        values = [f"{each.value:z.{digits}f}" if each else NONE for each in both]
        rows.append([title, *values, _with(gain.value, gain.low, gain.high), f"{gain.n:,} {gain.counted}"])

    if beside.get("against") == CHAMPION:
        values = [f"{beside[name]:.4f}" for name in ("loss_other", "loss_target")]
        interval = _with(beside["increase"], beside["low"], beside["high"])
        rows.append(["held-out loss, last week (nats/token)", *values, interval, f"{beside['rows']:,} rows"])
    gain = find(measurements, "loss_increase", of="target", against=CHAMPION)
    if gain is not None:
        losses = (find(measurements, "loss", of=role) for role in (CHAMPION, "target"))
        add("held-out loss, all rows (nats/token)", gain, 4, losses)
    for each in measurements:
        if (each.what, each.of, each.against) == ("accuracy_gain", "target", CHAMPION):
            how = {"on": each.on, "sampling": each.sampling}
            scores = (find(measurements, "accuracy", of=role, **how) for role in (CHAMPION, "target"))
            add(f"{each.on}, {each.sampling}", each, 3, scores)
    for each in _accepted_beside(candidate):
        lengths = (find(measurements, "acceptance_length", of=name, sampling=AS_LOGGED) for name in (CHAMPION, each.of))
        drafters = "both drafters on this release's target (tokens per forward; share)"
        add(f"acceptance length, {each.sampling}, {drafters}", each, 3, lengths)
    notes = ["Both on the same rows. Intervals are 95 %. A loss is better lower; a score and an acceptance length, higher."]
    if not rows:
        notes = [
            "There is no champion to compare with." if champion is None else "The evaluation report compared with no champion."
        ]
    if champion is not None and champion.no_target:
        notes.append(f"Losses and answers are not compared: {champion.no_target}.")
    return ReportSection("Scores", ["measured", "champion", "this release", "release - champion", "of"], rows, " ".join(notes))


def _costs(lake: LakeLayout, candidate: _Side, former: _Side, champion: Champion | None) -> ReportSection:
    """Acceptance, size, latency, cost and erased rows, each as its own report measured it."""
    rows = [
        ["weights of the target (MB)", _size(former, 0), _size(candidate, 0)],
        ["weights of the drafter (MB)", _size(former, 1), _size(candidate, 1)],
    ]
    rows += _in_servers(former, candidate)
    erased = (f"{rows_erased_from(lake, side.served):,}" if side.served else NONE for side in (former, candidate))
    rows.append(["rows learnt and erased since", *erased])
    if not _accepted_beside(candidate):  # else the scores have both, on the same rows: a second figure would contradict them
        rows.insert(0, ["acceptance length (tokens per forward)", _tau(former), _tau(candidate)])
    logged = _acceptance(candidate)
    drafted = f"; this release at K {logged['num_speculative_tokens']}, sampling: {logged['sampling']}" if logged else ""
    note = (
        f"Each as its own evaluation report measured it{drafted}. "
        "Latency and seconds per 1,000 tokens are those of a whole server and depend on the machine."
    )
    if champion is None:
        return ReportSection(COSTS, ["measured", "this release"], [[row[0], row[2]] for row in rows], note)
    return ReportSection(COSTS, ["measured", f"champion {champion.release}", "this release"], rows, note)


def _accepted_beside(candidate: _Side) -> list[Measurement]:
    """Gains of acceptance over the champion's drafter, on the same rows."""
    wanted = ("acceptance_gain", CHAMPION, AS_LOGGED)
    return [each for each in candidate.measurements if (each.what, each.against, each.sampling) == wanted]


def _in_servers(former: _Side, candidate: _Side) -> list[list[str]]:
    forms = [side.speed.get("in_server", {}).get("forms", {}) for side in (former, candidate)]
    rows = []
    for name in dict.fromkeys(name for form in forms for name in form):
        rates = [form.get(name, {}).get("tokens_per_second", {}) for form in forms]
        for at in dict.fromkeys(each for rate in rates for each in rate):
            rates_ = [rate.get(at) or {} for rate in rates]
            where = f"{FORMS.get(name, name)}, {at} at a time"
            seconds = (f"{1_000 / each['median']:z.2f}" if each else NONE for each in rates_)
            rows.append([f"seconds per 1,000 tokens, {where}", *seconds])
            if any("p99_s" in each for each in rates_):
                late = (f"{each['p99_s']:z.3f}" if "p99_s" in each else NONE for each in rates_)
                rows.append([f"latency p99 (s), {where}", *late])
    return rows


def _acceptance(side: _Side) -> dict[str, Any] | None:
    """Of the drafter that is served: lookups that need no training come first in a report."""
    drafted = [each for each in side.report.get("acceptance", []) if each["drafter"] != "none"]
    logged = [each for each in drafted if each["sampling"] == AS_LOGGED] or drafted
    return logged[-1] if logged else None


def _tau(side: _Side) -> str:
    acceptance = _acceptance(side)
    return _with(acceptance["tau"], acceptance["tau_low"], acceptance["tau_high"]) if acceptance else NONE


def _size(side: _Side, place: int) -> str:
    if len(side.served) <= place:
        return "-" if side.served else NONE
    weights = sum(
        file.bytes for file in side.served[place].files if file.path.endswith(".safetensors") and "/" not in file.path
    )
    return f"{weights / 1e6:z,.2f}"


def _with(value: float, low: float | None, high: float | None) -> str:
    return f"{value:z.4f}" + ("" if low is None or high is None else f" ({low:z.4f} to {high:z.4f})")


def _rows(path: Path) -> list[dict[str, Any]]:
    """Lines of the file, with what cannot be seen in their texts made visible; [] if a report has none."""
    if not path.exists():
        return []
    return [_visible(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _visible(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _visible(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_visible(each) for each in value]
    return "\n".join(visible(line) for line in value.split("\n")) if isinstance(value, str) else value


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
