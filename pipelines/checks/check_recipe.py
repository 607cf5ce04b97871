"""`millrace check`: checks a recipe, its logs and this machine before anything is run, and prints the findings. Writes
nothing; opens a few objects of each source; a server that does not answer costs seconds, not the whole check.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pipelines.checks.base_model import check_base_model
from pipelines.checks.environment import (
    check_devices,
    check_endpoints,
    check_evaluation_server,
    check_packages,
    check_person,
    check_rollout_server,
    check_serving,
)
from pipelines.checks.finding import CheckFinding, CheckStep, ok, run_checks, start_checks
from pipelines.checks.forecast import Forecast, forecast, print_forecast, time_finding
from pipelines.checks.inputs import check_source, check_suite, check_together
from pipelines.checks.lengths import check_lengths, check_room, tokens_of_records
from pipelines.checks.place import check_disk, check_lake
from pipelines.checks.worth import check_worth
from pipelines.contract import BaseModelError, Recipe, load_recipe, look_at_base
from pipelines.terminal import folded
from resources.inspecting import FirstLook


@dataclass
class CheckReport:
    """All findings, in reading order."""

    recipe: str
    lake: str
    findings: list[CheckFinding] = field(default_factory=list)
    forecast: Forecast | None = None
    """What a run takes; None where it cannot be predicted."""

    def count(self, state: str) -> int:
        return sum(finding.state == state for finding in self.findings)

    @property
    def problems(self) -> int:
        return self.count("problem")

    def as_json(self) -> str:
        return json.dumps(
            {
                "recipe": self.recipe,
                "lake": self.lake,
                "ok": not self.problems,
                "problems": self.problems,
                "warnings": self.count("warning"),
                "findings": [finding.as_dict() for finding in self.findings],
                "forecast": None if self.forecast is None else self.forecast.as_dict(),
            },
            ensure_ascii=False,
        )


def check(path: Path, place: Path, plan: bool = True, tell: Callable[[str], None] = lambda doing: None) -> CheckReport:
    """plan: also count rows and steps, and predict memory and time, which takes seconds. Raises RecipeError for a recipe that
    cannot be read."""
    recipe = load_recipe(path)
    report = CheckReport(str(path), str(place), [ok("recipe", f"{path.name} is valid; workload {recipe.workload}")])
    looks: dict[str, FirstLook] = {}
    inputs = [
        CheckStep(f"source {name}", partial(check_source, "source", name, source, looks))
        for name, source in recipe.sources.items()
    ]
    inputs += [
        CheckStep(f"seed {name}", partial(check_source, "seed", name, seed, looks))
        for name, seed in recipe.seeds.items()
        if seed.uri is not None
    ]
    tasks = recipe.datasets.rl_prompts.tasks if recipe.datasets.rl_prompts is not None else {}
    for kind, suites in (("eval", recipe.evals), ("tasks", tasks)):
        inputs += [CheckStep(f"{kind} {name}", partial(check_suite, kind, name, suite)) for name, suite in suites.items()]
    around = [
        CheckStep("lake", partial(check_lake, place)),
        CheckStep("packages", partial(check_packages, recipe)),
        CheckStep("endpoints", partial(check_endpoints, recipe)),
        *([CheckStep("approval", partial(check_person, recipe))] if recipe.release.enabled else []),
        CheckStep("serving", partial(check_serving, recipe)),
        CheckStep("server", partial(check_evaluation_server, recipe)),
        CheckStep("rollouts", partial(check_rollout_server, recipe)),
    ]
    # planning takes longest, in a process of its own, and needs no other check
    planned = start_checks([CheckStep("devices", partial(check_devices, recipe, path, _parameters(recipe), plan))])
    first = run_checks([*inputs, *around], tell=tell)
    names = {each.name for each in inputs}
    report.findings += [finding for finding in first if finding.check in names]
    report.findings += run_checks([CheckStep("sources", partial(check_together, recipe, looks))], tell=tell)
    report.findings += run_checks([CheckStep("base model", partial(_base, recipe, looks))], seconds=120, tell=tell)
    tokens: list[int] = []
    if plan:
        report.findings += run_checks([CheckStep("rows", partial(_worth, recipe, looks, tokens))], seconds=120, tell=tell)
    report.findings += run_checks([CheckStep("room", partial(_room, recipe, tokens or tokens_of_records(looks)))], tell=tell)
    after = run_checks(
        [
            CheckStep("disk", partial(check_disk, recipe, place, looks)),
            *([CheckStep("time", partial(_time, recipe, looks, place, report))] if plan else []),
        ],
        150,
        tell,
    )
    rest = [finding for finding in first if finding.check not in names]
    report.findings += [
        *(finding for finding in rest if finding.check == "lake"),
        *(finding for finding in after if finding.check == "disk"),
        *planned(150, tell),
        *(finding for finding in after if finding.check != "disk"),
        *(finding for finding in rest if finding.check != "lake"),
    ]
    return report


def _time(recipe: Recipe, looks: dict[str, FirstLook], place: Path, report: CheckReport) -> list[CheckFinding]:
    report.forecast = forecast(recipe, looks, place)
    return [] if report.forecast is None else [time_finding(report.forecast)]


def _worth(recipe: Recipe, looks: dict[str, FirstLook], tokens: list[int]) -> list[CheckFinding]:
    """Left out where a source is missing or holds no logs, which its own line says."""
    logs = any(looks[name].holds_logs for name in recipe.sources if name in looks)
    return check_worth(recipe, tokens) if logs and all(name in looks for name in recipe.sources) else []


def _base(recipe: Recipe, looks: dict[str, FirstLook]) -> list[CheckFinding]:
    return check_base_model(recipe, _system_share(looks), any(look.has_tools for look in looks.values()))


def _system_share(looks: dict[str, FirstLook]) -> float:
    """Share of the sampled records that have a system prompt."""
    return sum(look.with_system for look in looks.values()) / max(1, sum(len(look.characters) for look in looks.values()))


def _room(recipe: Recipe, tokens: list[int]) -> list[CheckFinding]:
    try:
        base = look_at_base(recipe.base_model)
    except BaseModelError:
        return []  # reported with the base model
    tiny = recipe.tiny.max_position_embeddings if base.kind == "tiny" else None
    return [*check_lengths(recipe, tokens), *check_room(recipe, tokens, tiny or base.context)]


def _parameters(recipe: Recipe) -> int | None:
    try:
        return look_at_base(recipe.base_model).parameters
    except BaseModelError:
        return None


MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "red")}
MOST_NAME = 24


def print_check(report: CheckReport, console: Console) -> None:
    """Prints what a run would take, every finding, and a closing count."""
    if report.forecast is not None:
        print_forecast(report.forecast, console)
        console.print()
    width = min(MOST_NAME, max(len(finding.check) for finding in report.findings))
    for finding in report.findings:
        _print(finding, width, console)
    problems, warnings = report.problems, report.count("warning")
    console.print()
    if problems:
        words, style = f"{_counted(problems, 'problem')}, {_counted(warnings, 'warning')}: a run would fail.", "bold red"
    else:
        words, style = f"No problem, {_counted(warnings, 'warning')}.", "bold green"
    console.print(Text(words, style=style))


def _print(finding: CheckFinding, width: int, console: Console) -> None:
    mark, style = MARKS[finding.state]
    name = finding.check if len(finding.check) <= width else finding.check[: width - 1] + "…"
    lead = width + 4
    lines = folded(finding.message, console, lead)
    named = (name.ljust(width), "bold" if finding.state != "ok" else "")
    console.print(Text.assemble((mark, style), " ", named, "  ", lines[0]), soft_wrap=True)
    for line in lines[1:]:
        console.print(Text(" " * lead + line), soft_wrap=True)
    if finding.remedy:
        for place, line in enumerate(folded(finding.remedy, console, lead + 2)):
            console.print(Text.assemble(" " * lead, ("→ " if place == 0 else "  ", style), line), soft_wrap=True)


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"
