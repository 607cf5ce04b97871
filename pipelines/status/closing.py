"""The end of `millrace run`: what there is now (rows, quality, acceptance, gates with their pages), and the next commands. What
the lake does not hold yet is left out."""

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from model_ops.evaluation import measurements_of
from model_ops.jobs import counted
from pipelines.contract import TINY, Recipe
from pipelines.running import INTERRUPTED, Outcome
from pipelines.status.lake_status import EndpointStatus, endpoint_status
from pipelines.terminal import wrap_words
from resources.artefacts import Registry
from resources.curating import RecordCounts
from resources.endpoints import Endpoint, standing
from resources.lake import LakeLayout
from resources.manifests import APPROVAL_PAGE, ManifestError
from resources.releases import GateResult, GateVerdict, ReleaseRef, gate_problem, read_release
from resources.releasing import quality_sentences, read_evaluation
from resources.stages import trained_sections

RELEASE_STEP = "release_candidate"
SECTIONS = {
    "recovery": "Served model against its unquantized form",
    "acceptance": "Acceptance length",
    "accuracy": "Evaluation suites",
    "loss": "Models on held-out sessions",
}
"""Section of the release's report that shows what a gate measured, by the first word of the gate's name."""
NAME = 12
"""Characters of the column of names."""


class ClosingLine(NamedTuple):
    name: str
    """What the line is about."""
    text: str
    style: str = ""
    """Style of the name; "" for plain text."""


def print_closing(lake: LakeLayout, recipe: Recipe, path: Path, outcome: Outcome, console: Console, took: str = "") -> None:
    """Prints the lines: a name of one word, and a sentence beside it. took: seconds, and a note on the prediction."""
    console.print()
    for line in [*([ClosingLine("time", took)] if took else []), *closing(lake, recipe, path, outcome)]:
        for place, part in enumerate(wrap_words(line.text, console, NAME)):
            console.print(Text.assemble((f"{'' if place else line.name:<{NAME}}", line.style or "bold"), part), soft_wrap=True)


def closing(lake: LakeLayout, recipe: Recipe, path: Path, outcome: Outcome) -> Iterator[ClosingLine]:
    """The lines about a run that has ended."""
    registry = Registry(lake, recipe.workload)
    reached = RELEASE_STEP in outcome.finished
    is_released = reached and registry.exists("release", "release")
    if is_released and (worth := read_release(registry.directory(registry.current("release", "release"))).worth):
        yield ClosingLine("worth", worth)
    with suppress(ManifestError):
        yield _rows(registry)
    yield from _few_steps(registry, recipe, outcome)
    if "evaluation_report" in outcome.finished or reached:
        with suppress(ManifestError, OSError, ValueError, KeyError):
            report, _ = read_evaluation(registry.directory(registry.current("dataset", "evaluation_report")))
            yield from (ClosingLine(*line) for line in quality_sentences(measurements_of(report)))
    if not is_released:
        yield from _unfinished(lake, recipe, path, outcome)
        return
    release = registry.directory(registry.current("release", "release"))
    status, content = endpoint_status(lake, recipe.workload), read_release(release)
    lost = [gate for gate in content.gates if gate_problem(gate)]
    yield from _gates(release, content.gates)
    yield from _next(lake, _run_again(lake, path), recipe.workload, release, status, lost)


def _rows(registry: Registry) -> ClosingLine:
    records = RecordCounts.of(registry.current("dataset", "curated_interactions"))
    said = f"{records.read_text}, {records.rows:,} kept"
    with suppress(ManifestError):
        metrics = registry.current("dataset", "sft_dataset").metrics
        rows = metrics["rows"]
        held_out = sum(count for split, count in rows.items() if split != "train")
        said += f"; dataset: {rows.get('train', 0):,} in training, {held_out:,} held out"
        said += "".join(f"; {note}" for note in metrics.get("split_notes", ()))
    return ClosingLine("rows", said)


def _few_steps(registry: Registry, recipe: Recipe, outcome: Outcome) -> Iterator[ClosingLine]:
    """Trainings of this run with too few steps to learn from, and what to set. A toy is none."""
    for section, trained in recipe.trained.items() if recipe.base_model != TINY else ():
        if (name := trained_sections()[section].name) in outcome.finished:
            with suppress(ManifestError, KeyError):
                steps, settings = int(registry.current("model", name).metrics["steps"]), trained.resolved()
                if remedy := settings.more_steps(steps, section):
                    said = f"{name} took {counted(steps, 'step')}, too few to learn from: {remedy}"
                    yield ClosingLine("! few", said, "yellow")


def _gates(release: Path, gates: Sequence[GateResult]) -> Iterator[ClosingLine]:
    yield ClosingLine("gates", GateVerdict.of(gates).sentence)
    for gate in gates:
        if why := gate_problem(gate):
            yield ClosingLine("✗ missed", why.removeprefix("gate "), "red")
            section = SECTIONS.get(gate.name.partition("_")[0], "Gates")
            yield ClosingLine("", f'page: {_typed(release / "report.html")}, "{section}"')


def _next(
    lake: LakeLayout, again: str, workload: str, release: Path, status: EndpointStatus, lost: Sequence[GateResult]
) -> Iterator[ClosingLine]:
    """Where the release stands, the page to read, and the commands that a person gives now. again: runs the recipe."""
    version, option = release.name, lake.typed_option
    serves = f"millrace serve {workload} {option}"
    withdrawn = standing(Endpoint(lake, workload).entries(), ReleaseRef(version=version)) == "withdrawn"
    page = next((release / name for name in (APPROVAL_PAGE, "report.html") if (release / name).exists()), release)
    yield ClosingLine("release", f"{version}: {_state(status, version, lost, withdrawn)}")
    yield ClosingLine("read", _typed(page))
    if status.champion == version:
        yield ClosingLine("serve", serves)
    elif lost or status.faults or withdrawn:
        keys = ", ".join(dict.fromkeys(f"release.gates.{gate.name.partition('/')[0]}" for gate in lost))
        mend = f"mend what is missed, or change its bound ({keys}), then " if lost else ""
        yield ClosingLine("next", f"{mend}run the recipe again, which makes what changed: {again}")
    elif status.candidate == version and status.command:
        yield ClosingLine("approve", f"millrace approve {version} {option}")
        yield ClosingLine("serve", f"{serves}   (before the approval: --alias candidate)")


def _state(status: EndpointStatus, version: str, lost: Sequence[GateResult], withdrawn: bool) -> str:
    if status.champion == version:
        return "it is the champion, which servers take"
    if status.problem:
        return status.problem
    stays = f"champion {status.champion} stays" if status.champion else "nothing is served yet"
    if lost:
        return f"it is not offered, because {counted(len(lost), 'gate')} {'is' if len(lost) == 1 else 'are'} missed; {stays}"
    if withdrawn:
        return f"it was withdrawn, so it is not offered; {stays}"
    if status.candidate != version:
        return f"no alias names it; {stays}"
    if status.faults:
        return f"it cannot be approved: {'; '.join(status.faults)}"
    return f"it waits for {status.waiting_for}; {stays}"


def _unfinished(lake: LakeLayout, recipe: Recipe, path: Path, outcome: Outcome) -> Iterator[ClosingLine]:
    finished = [step for step in outcome.finished if step not in outcome.reused]
    if outcome.exit_code == 0:
        yield ClosingLine("made", ", ".join(finished) or "nothing: all of it was there")
        if "release" in recipe.disabled or RELEASE_STEP in recipe.disabled:
            yield ClosingLine("", "the recipe makes no release (release.enabled)")
            return
    goes_on = _run_again(lake, path)
    how = "goes on to a release" if outcome.exit_code == 0 else "goes on from what is finished"
    if outcome.exit_code not in (0, INTERRUPTED):
        how = f"{how}, once that is mended"
    yield ClosingLine("next", f"{goes_on} {how}")


def _run_again(lake: LakeLayout, path: Path) -> str:
    return f"millrace run {shlex.quote(_typed(path))} {lake.typed_option}"


def _typed(path: Path) -> str:
    """A path as a person in this folder would type it, if that is the shorter form."""
    near = os.path.relpath(path)
    return near if len(near) < len(str(path)) else str(path)
