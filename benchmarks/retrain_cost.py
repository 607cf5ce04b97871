"""What a drafter's refresh after a new day costs, when the graph finds and starts it by itself, beside the whole graph.

    python -m benchmarks.retrain_cost             # the demo's recipe and traffic, 15 to 25 minutes on 2 cores
    python -m benchmarks.retrain_cost --quick     # the quick demo's: fixed costs of a run outweigh its work
    python -m benchmarks.retrain_cost --home DIR  # keeps the lake of the first days in DIR and uses an existing one

The demo's traffic without its last day is run through the whole graph and released. Then the last day's files arrive, and
nobody touches anything: Dagster's daemon runs the sensors `new_logs` and `decide`. The recipe says that logs are a sample of
REQUESTS_A_DAY requests, since the demo's own traffic is too little for any training to pay back.

share: seconds of the run that `decide` started, over those of the first runs (jobs logs and train, from start to end, as
Dagster counts them). share_with_logs: the same with the new day's run of `logs` added. found_s: from the files' arrival until
the decision. predicted_s: what the decision predicted. gain, predicted_gain: of the acceptance length.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from benchmarks.record import record
from pipelines.demo.traffic import write_traffic
from pipelines.keeping.dagster_servers import code_locations
from pipelines.running.instance import open_instance
from pipelines.running.submission import submit
from pipelines.storage.locations import RECIPES
from resources.artefacts.registry import Registry
from resources.deciding.decisions import Decision, Decisions
from resources.endpoints.approvals import record_approval
from resources.endpoints.endpoint_log import Actor
from resources.lake.lake import LakeLayout
from resources.launching.processes import child_environment
from resources.launching.run_history import RunRecord, runs

WORKLOAD, BY = "code-assistant", Actor("benchmark", "MILLRACE_USER", "the first release")
REQUESTS_A_DAY = 1_000_000
WAITS_S = 3_600
DAYS = {"demo": (6_000, 7), "quick": (400, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--home", type=Path, help="keeps the lake of the first days here and uses an existing one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        home = (given.home or Path(folder)).resolve()
        recipe = _released(home, "quick" if given.quick else "demo")
        lake = LakeLayout.open(home / "lake")
        before = {run.run_id: run for run in runs(lake)}
        whole = sum(_seconds(run) for run in before.values())
        arrived = time.time()
        _let_the_last_day_arrive(home)
        with _daemon(lake, recipe):
            decision = _settled(lake)
        logs = sum(_seconds(run) for run in runs(lake) if run.run_id not in before and run.job == "logs")
        versions = [each.version for each in Registry(lake, WORKLOAD).versions("model", "sft_model")]
    if decision.action != "drafter_continued" or decision.cost_s is None or len(versions) != 1:
        raise RuntimeError(f"{decision.action} ({decision.outcome}): {decision.why}; versions of sft_model: {len(versions)}")
    chosen = decision.chosen
    assert chosen is not None
    record(
        "retrain_cost",
        {
            "share": round(decision.cost_s / whole, 4),
            "share_with_logs": round((decision.cost_s + logs) / whole, 4),
            "seconds": round(decision.cost_s, 1),
            "logs_seconds": round(logs, 1),
            "whole_graph_seconds": round(whole, 1),
            "found_s": round(decision.ts.timestamp() - arrived, 1),
            "action": decision.action,
            "outcome": decision.outcome,
            "predicted_s": round(chosen.predicted_cost_s or 0.0, 1),
            "predicted_gain": round(chosen.predicted_gain or 0.0, 4),
            "gain": None if decision.gain is None else round(decision.gain, 4),
            "requests_a_day": REQUESTS_A_DAY,
            "new_rows": decision.evidence.get("new_rows_of_drafter"),
            "rows": decision.evidence.get("rows"),
            "cause": decision.cause_text,
        },
        keep=not given.quick,
    )


def _released(home: Path, size: str) -> Path:
    """The recipe of a lake with the first days, run and released; the last day's files wait in home/waiting."""
    recipe = home / f"{size}.yaml"
    if (home / "released").exists():
        return recipe
    requests, days = DAYS[size]
    write_traffic(home / "traffic", interactions=requests, days=days)
    for path in _of_the_last_day(home / "traffic"):
        waiting = home / "waiting" / path.relative_to(home / "traffic")
        waiting.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, waiting)
    text = (RECIPES / f"{size}.yaml").read_text(encoding="utf-8").replace("../demo/quick/traffic", "traffic")
    automation = {
        "watch_logs": True,
        "decide": {"enabled": True, "cool_down_hours": 0, "requests_per_day": REQUESTS_A_DAY, "least_new_rows": 50},
    }
    recipe.write_text(text.replace("../demo/traffic", "traffic") + yaml.safe_dump({"automation": automation}), encoding="utf-8")
    _wait(submit(recipe, home / "lake"))
    registry = Registry(LakeLayout.open(home / "lake"), WORKLOAD)
    record_approval(registry.lake, registry.directory(registry.current("release", "release")), BY)
    _wait(submit(recipe, home / "lake", ["endpoint"]))
    (home / "released").touch()
    return recipe


def _of_the_last_day(traffic: Path) -> list[Path]:
    """Logs and feedback of the last day; one day of the demo's logs is LiteLLM's."""
    last = max(path.name.removeprefix("dt=") for path in (traffic / "gateway").glob("dt=*"))
    places = (traffic / "gateway" / f"dt={last}", traffic / "litellm" / last, traffic / "feedback" / f"{last}.jsonl")
    return [place for place in places if place.exists()]


def _let_the_last_day_arrive(home: Path) -> None:
    for path in [path for path in (home / "waiting").rglob("*") if path.is_file()]:
        there = home / "traffic" / path.relative_to(home / "waiting")
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, there)


def _wait(run) -> None:
    outcome = run.wait()
    if outcome.exit_code:
        raise RuntimeError("; ".join(outcome.messages))


def _seconds(run: RunRecord) -> float:
    return (run.ended_at - run.started_at).total_seconds() if run.ended_at and run.started_at else 0.0


@contextmanager
def _daemon(lake: LakeLayout, recipe: Path) -> Iterator[None]:
    """Dagster's daemon with the recipe's sensors, as `millrace ui` starts it."""
    open_instance(lake)
    workspace = lake.root.parent / "workspace.yaml"
    workspace.write_text(yaml.safe_dump({"load_from": code_locations([recipe])}), encoding="utf-8")
    environment = child_environment(DAGSTER_HOME=str(lake.dagster_home), MILLRACE_LAKE=str(lake.root))
    with (lake.root.parent / "daemon.log").open("w") as log:
        command = [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-w", str(workspace)]
        daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            yield
        finally:
            daemon.terminate()
            daemon.wait(60)


def _settled(lake: LakeLayout) -> Decision:
    """The first decision with a run that has ended."""
    until = time.monotonic() + WAITS_S
    while time.monotonic() < until:
        found = [each for each in Decisions(lake, WORKLOAD).seen() if each.action != "nothing" and each.cost_s is not None]
        if found:
            return found[0]
        time.sleep(2)
    said = [f"{each.cause}: {each.action}, {each.outcome}, {each.why}" for each in Decisions(lake, WORKLOAD).seen()]
    raise RuntimeError(f"no decision had an ended run after {WAITS_S} s: {'; '.join(said) or 'nothing was decided'}")


if __name__ == "__main__":
    main()
