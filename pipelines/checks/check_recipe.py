"""`millrace check`: checks a recipe, its logs and this machine before anything is run, and prints the findings. Writes
nothing; opens a few objects of each source; a server that does not answer costs seconds, not the whole check."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
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
from pipelines.checks.finding import SECONDS, CheckFinding, CheckStep, ok, run_checks, start_checks
from pipelines.checks.forecast import Forecast, forecast, print_forecast, time_finding
from pipelines.checks.inputs import check_source, check_suite, check_together
from pipelines.checks.place import check_disk, check_lake
from pipelines.checks.worth import check_lengths, check_room, check_worth, tokens_of_records
from pipelines.contract import BaseModelError, Recipe, load_recipe, look_at_base
from pipelines.terminal import wrap_words
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
    step, tokens = CheckStep.of, list[int]()
    # planning takes longest, in a process of its own, and needs no other check
    planned = start_checks([step("devices", check_devices, recipe, path, _parameters(recipe), plan)])
    lake = start_checks([step("lake", check_lake, place)])
    around = [
        step("packages", check_packages, recipe),
        step("endpoints", check_endpoints, recipe),
        *([step("approval", check_person, recipe)] if recipe.release.enabled else []),
        step("serving", check_serving, recipe),
        step("server", check_evaluation_server, recipe),
        step("rollouts", check_rollout_server, recipe),
    ]
    rest = start_checks(around)
    report.findings += run_checks(_inputs(recipe, looks), tell=tell)
    report.findings += run_checks([step("sources", check_together, recipe, looks)], tell=tell)
    report.findings += run_checks([step("base model", _base, recipe, looks)], 120, tell)
    if plan:
        report.findings += run_checks([step("rows", _worth, recipe, looks, tokens)], 120, tell)
    report.findings += run_checks([step("room", _room, recipe, looks, tokens)], tell=tell)
    report.findings += lake(SECONDS, tell)
    timed = start_checks([step("time", _time, recipe, looks, place, report)] if plan else [])
    report.findings += run_checks([step("disk", check_disk, recipe, place, looks)], 150, tell)
    for wait in (planned, timed):
        report.findings += wait(150, tell)
    report.findings += rest(SECONDS, tell)
    return report


def _inputs(recipe: Recipe, looks: dict[str, FirstLook]) -> list[CheckStep]:
    sources = [("source", name, source) for name, source in recipe.sources.items()]
    sources += [("seed", name, seed) for name, seed in recipe.seeds.items() if seed.uri is not None]
    tasks = recipe.datasets.rl_prompts.tasks if recipe.datasets.rl_prompts is not None else {}
    suites = [("eval", name, suite) for name, suite in recipe.evals.items()]
    suites += [("tasks", name, suite) for name, suite in tasks.items()]
    return [
        *(CheckStep.of(f"{kind} {name}", check_source, kind, name, source, looks) for kind, name, source in sources),
        *(CheckStep.of(f"{kind} {name}", check_suite, kind, name, suite) for kind, name, suite in suites),
    ]


def _time(recipe: Recipe, looks: dict[str, FirstLook], place: Path, report: CheckReport) -> list[CheckFinding]:
    report.forecast = forecast(recipe, looks, place)
    return [] if report.forecast is None else [time_finding(report.forecast)]


def _worth(recipe: Recipe, looks: dict[str, FirstLook], tokens: list[int]) -> list[CheckFinding]:
    """Left out where a source is missing or holds no logs, which its own line says."""
    logs = any(looks[name].holds_logs for name in recipe.sources if name in looks)
    return check_worth(recipe, tokens, looks) if logs and all(name in looks for name in recipe.sources) else []


def _base(recipe: Recipe, looks: dict[str, FirstLook]) -> list[CheckFinding]:
    share = sum(look.with_system for look in looks.values()) / max(1, sum(len(look.characters) for look in looks.values()))
    return check_base_model(recipe, share, any(look.has_tools for look in looks.values()))


def _room(recipe: Recipe, looks: dict[str, FirstLook], tokens: list[int]) -> list[CheckFinding]:
    tokens = tokens or tokens_of_records(looks)
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
    lines = wrap_words(finding.message, console, lead)
    named = (name.ljust(width), "bold" if finding.state != "ok" else "")
    console.print(Text.assemble((mark, style), " ", named, "  ", lines[0]), soft_wrap=True)
    for line in lines[1:]:
        console.print(Text(" " * lead + line), soft_wrap=True)
    if finding.remedy:
        for place, line in enumerate(wrap_words(finding.remedy, console, lead + 2)):
            console.print(Text.assemble(" " * lead, ("→ " if place == 0 else "  ", style), line), soft_wrap=True)


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"
