"""Kills under `millrace up` while logs arrive: is any row lost or read twice, does any run hang, does any cursor stand still?

    python -m benchmarks.up_faults                # 20 kills, 7 days of traffic; some 25 minutes
    python -m benchmarks.up_faults --quick        # 5 kills, 3 days; some 6 minutes
    python -m benchmarks.up_faults --postgres     # Dagster's history in Postgres, which is killed, too

A new object of logs is written every few seconds; the recipe's sensor reads them (`automation.watch_logs`). All the while a
process is killed with SIGKILL at random moments (seeded): the webserver, the daemon, its code server, the process of a run, or
`millrace up` itself, which is then started again as systemd would. The database is ended without order, and away for 3 s.

In the end nothing is killed any more, and what is left is waited for. rows: written. lost, twice: rows that the table
`interactions` does not have, or has more than once; uncleaned: rows that were not cleaned exactly once. stuck: runs that have
not ended. cursor: whether the sensor's has moved. runs, retried: of Dagster's history. settled_s: seconds from the last object
to the last row. left: processes that were still there after the end of `millrace up`.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import psutil

from benchmarks.record import record
from model_ops.files.atomic_files import write_text
from pipelines.keeping.keeper import read_state
from resources.lake.lake import LakeLayout
from resources.launching.processes import child_environment, python_module

SEED, ROWS, FIRST_DAY, WORKLOAD = 7, 150, date(2026, 6, 1), "kept"
OBJECT_EVERY_S, SETTLES_S, RUN_WAITS_S = 8.0, 900.0, 120.0
RECIPE = """
workload: {workload}
base_model: tiny
sources: {{gateway: {{uri: logs}}}}
first_day: {first}
last_day: {last}
threads: 1
automation: {{watch_logs: true}}
drift: {{enabled: false}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few kills; nothing is recorded")
    parser.add_argument("--postgres", action="store_true", help="Dagster's history in a Postgres server, which is killed, too")
    given = parser.parse_args()
    figures = faults(kills=5 if given.quick else 20, days=3 if given.quick else 7, with_database=given.postgres)
    record("up_faults_postgres" if given.postgres else "up_faults", figures, keep=not given.quick)


def faults(
    kills: int, days: int, with_database: bool = False, between_s: tuple[float, float] = (15.0, 60.0)
) -> dict[str, object]:
    """The figures. between_s: shortest and longest time between two kills, in seconds."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as made, ExitStack() as stack:
        home = Path(made)
        database = None
        if with_database:
            from benchmarks.postgres_server import postgres_server

            database = stack.enter_context(postgres_server())
            os.environ["MILLRACE_POSTGRES"] = database.url
        (home / "logs").mkdir()
        last = FIRST_DAY + timedelta(days=days - 1)
        write_text(home / "kept.yaml", RECIPE.format(workload=WORKLOAD, first=FIRST_DAY, last=last))
        machine = _Machine(home)
        stack.callback(machine.stop)
        machine.start()
        logs = _Logs(home / "logs", days)
        draw, killed = random.Random(SEED), Counter()
        kinds = [*(["database"] if database else []), *machine.targets]
        order = [kinds[number % len(kinds)] for number in range(kills)]
        draw.shuffle(order)
        for kind in order:
            logs.write_for(draw.uniform(*between_s))
            if kind == "database":
                database.restart(kill=True, away_s=3.0)
                killed[kind] += 1
            else:
                killed[kind] += machine.kill(kind, logs)
        logs.write_day_ends()
        last_object = time.monotonic()
        found = _settled(home, logs.rows, last_object)
        left = machine.stop()
        return {
            "kills": sum(killed.values()),
            "killed": dict(killed),
            "days": days,
            "objects": logs.objects,
            **found,
            "left": left,
        }


class _Logs:
    """Objects of logs, one every few seconds; each day gets some, in no order."""

    def __init__(self, folder: Path, days: int):
        self._folder, self._days, self._draw = folder, days, random.Random(SEED + 1)
        self.rows = self.objects = 0

    def write_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.write(self._draw.randrange(self._days))
            time.sleep(min(OBJECT_EVERY_S, max(0.0, until - time.monotonic())))

    def write_day_ends(self) -> None:
        """One more object for each day, so that each day has some."""
        for day in range(self._days):
            self.write(day)

    def write(self, day: int) -> None:
        dt = FIRST_DAY + timedelta(days=day)
        lines = [json.dumps(_exchange(dt, self.rows + number)) for number in range(ROWS)]
        write_text(self._folder / f"dt={dt}" / f"part-{self.objects:05d}.jsonl", "\n".join(lines) + "\n")
        self.rows, self.objects = self.rows + ROWS, self.objects + 1


def _exchange(dt: date, number: int) -> dict[str, object]:
    at = datetime(dt.year, dt.month, dt.day, 12, tzinfo=UTC).timestamp() + number % 3600
    name = f"chatcmpl-{number:08d}"
    question = f"What is {number} plus {number * 7}, and why does the order of the two numbers not matter for item {number}?"
    answer = f"It is {number * 8}. Addition gives the same sum in either order, which holds for item {number} as for any other."
    return {
        "timestamp": at,
        "request_id": name,
        "session_id": f"s-{number // 3}",
        "request": {"model": "m", "messages": [{"role": "user", "content": question}]},
        "response": {
            "id": name,
            "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}],
        },
    }


class _Machine:
    """`millrace up` on a lake, started again when it was killed."""

    targets = ("webserver", "daemon", "code_server", "run", "up")

    def __init__(self, home: Path):
        self.home, self._up, self._port = home, None, _free_port()
        self._log = (home / "up.txt").open("a")

    def start(self) -> None:
        """Returns when all servers have been started."""
        words = ["up", str(self.home / "kept.yaml"), "--lake", str(self.home / "lake"), "--port", str(self._port)]
        self._up = subprocess.Popen(
            python_module("pipelines.cli", *words),
            env=child_environment(OMP_NUM_THREADS="1"),
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        _until(
            lambda: (state := self.state()) is not None and state.is_running and state.pid_of("daemon"),
            120,
            lambda: (self.home / "up.txt").read_text()[-2000:],
        )

    def state(self):
        return read_state(LakeLayout(self.home / "lake").dagster_home)

    def kill(self, kind: str, logs: _Logs) -> int:
        """1 if something was killed. A run is waited for, while logs go on arriving."""
        until = time.monotonic() + (RUN_WAITS_S if kind == "run" else 30)
        while (process := self._find(kind)) is None:
            if time.monotonic() > until:
                return 0
            if kind == "run":
                logs.write_for(0.2)
            else:
                time.sleep(0.2)
        if kind == "run":
            time.sleep(random.Random(logs.objects).uniform(0.0, 8.0))
        with suppress(psutil.Error):
            process.kill()
        if kind == "up":
            self._up.wait()
            time.sleep(1)
            self.start()
        return 1

    def stop(self) -> int:
        """Ends it as systemd does; returns how many processes of the lake are left."""
        if self._up is not None and self._up.poll() is None:
            self._up.send_signal(signal.SIGTERM)
            self._up.wait(timeout=300)
        time.sleep(1)
        return sum(_names(process, str(self.home)) for process in psutil.process_iter() if process.pid != os.getpid())

    def _find(self, kind: str) -> psutil.Process | None:
        if kind == "up":
            return psutil.Process(self._up.pid)
        state = self.state()
        pid = state.pid_of("webserver" if kind == "webserver" else "daemon") if state else None
        if pid is None:
            return None
        with suppress(psutil.Error):
            if kind in ("webserver", "daemon"):
                return psutil.Process(pid)
            word = "spawn_main" if kind == "run" else "grpc"
            for process in psutil.Process(pid).children(recursive=True):
                with suppress(psutil.Error):
                    if any(word in each for each in process.cmdline()):
                        return process
        return None


def _names(process: psutil.Process, home: str) -> bool:
    """Whether a process works on this lake."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and (
            any(home in word for word in process.cmdline()) or home in process.environ().get("MILLRACE_LAKE", "")
        )
    except psutil.Error:
        return False


def _settled(home: Path, rows: int, last_object: float) -> dict[str, object]:
    """Waits until all rows are there and all runs have ended, and counts."""
    import dagster as dg

    from pipelines.running.instance import IN_PROGRESS, open_instance

    lake = LakeLayout(home / "lake")
    waiting = [*IN_PROGRESS, dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED]
    with open_instance(lake) as instance:
        settled_s = None
        while time.monotonic() - last_object < SETTLES_S:
            counted = _counted(lake, rows)
            if not counted["lost"] and not counted["uncleaned"]:
                settled_s = settled_s or round(time.monotonic() - last_object)
                if not instance.get_runs(dg.RunsFilter(statuses=waiting)):
                    break
            time.sleep(2)
        runs = instance.get_runs()
        [sensor] = [state for state in instance.all_instigator_state() if state.name == "new_logs"]
        cursor = sensor.instigator_data.cursor if sensor.instigator_data else None
        return {
            "rows": rows,
            **_counted(lake, rows),
            "stuck": len(instance.get_runs(dg.RunsFilter(statuses=waiting))),
            "cursor": bool(cursor),
            "settled_s": settled_s,
            "runs": dict(Counter(run.status.value for run in runs)),
            "retried": sum("dagster/retry_number" in run.tags for run in runs),
        }


def _counted(lake: LakeLayout, rows: int) -> dict[str, int]:
    ids, cleaned = _ids(lake, "interactions"), _ids(lake, "cleaned_interactions")
    once = sum(1 for times in cleaned.values() if times == 1)
    return {"lost": rows - len(ids), "twice": sum(ids.values()) - len(ids), "uncleaned": max(rows - once, len(cleaned) - once)}


def _ids(lake: LakeLayout, table: str) -> Counter[str]:
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(lake.table(table))):
        return Counter()
    found = DeltaTable(str(lake.table(table))).to_pyarrow_table(columns=["interaction_id"])
    return Counter(found["interaction_id"].to_pylist())


def _until(condition: Callable[[], object], seconds: float, why: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"millrace up did not start its servers: {why()}")
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    main()
