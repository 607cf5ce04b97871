"""The cost of a run in which nothing changed: with 10 artefacts and 10 days, and with 1,000 artefacts and 1,000 days.

    python -m benchmarks.incremental                  # prepares both lakes first: about 15 minutes
    python -m benchmarks.incremental --quick          # 100 artefacts and 100 days instead of 1,000
    python -m benchmarks.incremental --home DIR       # keeps the prepared lakes in DIR and uses existing ones

Both lakes hold the same number of logged requests and one workload with the whole graph, at toy size. The artefacts beyond the
graph's own are earlier versions of them, with manifests of the same size. Each lake is run until nothing is left to do; then
`millrace run` is timed three times in each, by turns, and the fastest counts.

seconds_10, seconds_1000: of such a run, from the command to its end, start of Python included. ratio: the second over the
first. cpu_seconds: CPU time of all its processes. megabytes: what they read, files in the page cache included
(rchar of /proc/self/io).
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from benchmarks.record import record
from pipelines.demo.traffic import write_traffic

REQUESTS = 1_200
RECIPE = """
workload: toy
base_model: tiny
sources:
  gateway: {uri: traffic/gateway}
  litellm: {uri: traffic/litellm}
  thumbs:  {uri: traffic/feedback}
last_day: LAST_DAY
seeds: {handmade: {uri: traffic/seeds.jsonl}}
evals: {heldout: {uri: traffic/evals/heldout_functions.jsonl}}
tiny: {steps: 4, tokens_per_step: 512, max_length: 256, vocab_size: 512, hidden_size: 64, mlp_size: 128}
sft: {steps: 2, tokens_per_step: 512, max_length: 256}
student: {layers: 7, steps: 2, tokens_per_step: 512, max_length: 256}
speculator: {steps: 2, tokens_per_step: 512, max_length: 256, ttt_steps: 2, answers: {prompts: 4, max_new_tokens: 8}}
evaluation: {rows: 4, prompts: 4, max_new_tokens: 8}
release: {gates: {recovery: 0.001, acceptance_length: 1.0}}
"""


@dataclass
class Cost:
    """Of one run."""

    seconds: float
    cpu_seconds: float
    megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--home", type=Path, help="keeps the prepared lakes here and uses existing ones")
    given = parser.parse_args()
    large = 100 if given.quick else 1_000
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        home = (given.home or Path(folder)).resolve()
        recipes = {size: _prepared(home / f"lake-{size}", size) for size in (10, large)}
        for recipe in [*recipes.values()] * 2:  # the first run makes what is missing, the second finds nothing to do
            _run(recipe)
        costs: dict[int, list[Cost]] = {size: [] for size in recipes}
        for _ in range(3):
            for size, recipe in recipes.items():
                costs[size].append(_run(recipe))
        few, many = (min(costs[size], key=lambda cost: cost.seconds) for size in (10, large))
        found = {size: _artefacts(recipe) for size, recipe in recipes.items()}
    record(
        "incremental",
        {
            "seconds_10": round(few.seconds, 2),
            f"seconds_{large}": round(many.seconds, 2),
            "ratio": round(many.seconds / few.seconds, 3),
            "cpu_seconds_10": round(few.cpu_seconds, 2),
            f"cpu_seconds_{large}": round(many.cpu_seconds, 2),
            "cpu_ratio": round(many.cpu_seconds / few.cpu_seconds, 3),
            "megabytes_10": round(few.megabytes, 1),
            f"megabytes_{large}": round(many.megabytes, 1),
            "megabytes_ratio": round(many.megabytes / few.megabytes, 3),
            "requests": REQUESTS,
            "artefacts": list(found.values()),
            "days": list(recipes),
            "all_runs": {str(size): [asdict(cost) for cost in each] for size, each in costs.items()},
        },
        keep=not given.quick,
    )


def _prepared(home: Path, size: int) -> Path:
    """Writes the recipe of a lake with `size` days and at least `size` artefacts, next to the lake."""
    recipe = home / "toy.yaml"
    if (home / "prepared").exists():
        return recipe
    first = date(2023, 1, 1)
    write_traffic(home / "traffic", interactions=REQUESTS, days=size, first_day=first)
    last = date.fromordinal(first.toordinal() + size - 1)
    recipe.write_text(RECIPE.replace("LAST_DAY", last.isoformat()))
    _run(recipe)
    _multiply(home / "lake", size)
    (home / "prepared").touch()
    return recipe


def _multiply(lake: Path, wanted: int) -> None:
    """Adds earlier versions, whose files link to the current version's files, until there are enough."""
    current = sorted([*lake.glob("datasets/*/*/*/manifest.json"), *lake.glob("models/*/*/*/manifest.json")])
    for number in range(max(0, wanted - _count(lake))):
        source = current[number % len(current)].parent
        manifest = json.loads((source / "manifest.json").read_text())
        manifest["version"] = f"{number:012x}"
        target = source.with_name(manifest["version"])
        shutil.copytree(source, target, copy_function=os.link)
        (target / "manifest.json").unlink()
        (target / "manifest.json").write_text(json.dumps(manifest, indent=2))


def _artefacts(recipe: Path) -> int:
    return _count(recipe.parent / "lake")


def _count(lake: Path) -> int:
    patterns = ("datasets/*/*/*", "models/*/*/*", "releases/*/*")
    return sum(1 for pattern in patterns for _ in lake.glob(f"{pattern}/manifest.json"))


def _run(recipe: Path) -> Cost:
    """One `millrace run`. Raises RuntimeError with the end of what it said where it fails."""
    before, read, began = resource.getrusage(resource.RUSAGE_CHILDREN), _bytes_read(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.cli", "run", str(recipe), "--lake", str(recipe.parent / "lake")],
        capture_output=True,
        text=True,
    )
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"millrace run {recipe} ended with {done.returncode}:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(round(seconds, 3), round(cpu, 3), round((_bytes_read() - read) / 1e6, 3))


def _bytes_read() -> int:
    """Bytes that this process and its children that have ended were given by read calls."""
    words = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(words["rchar"])


if __name__ == "__main__":
    main()
