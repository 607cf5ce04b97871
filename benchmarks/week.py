"""A week of an endpoint in minutes: its traffic shifts, breaks, its processes are killed, and one person approves once.

    python -m benchmarks.week                  # about 25 minutes on 2 cores; needs ../shared, and vLLM's CPU environment
    python -m benchmarks.week --quick          # 3 small days, some minutes: a check of the harness, whose figures mean nothing

The house model with a drafter in vLLM, behind `millrace serve --watch --capture`, kept running by `millrace up` with Dagster's
daemon and UI. Before the week: 28 days of logs (math, the model's own answers), from which `millrace run` makes the first
release. In the week: by day people ask, and then it is night. The clock of all processes of millrace jumps
(benchmarks/simulated_clock.py): to the morning, to the night, and by minutes while nothing is at work at night. So every date
is the simulated one, in captured logs, windows of metrics, decisions, budgets and cool-downs; how long anything takes is real.
A night ends when new logs are read and compared and no run is at work; the clock does not jump while one is. vLLM has the real
time.

Day 3: other traffic (an airline's customers, benchmarks/week_rows.py). Day 5: errors, junk and repetitions. SIGKILL at random
moments (benchmarks/week_kills.py). The first candidate of the week whose gates hold is approved, and no other. Requests ask for
whole answers: the rest of a stream cannot come from another server, so a killed server breaks its streams off.

failed_requests: requests that got no whole answer, or an error other than the one they deserve. tau: tokens a forward pass of
the target, as the server counts them for each usual request: tau_first before the shift, tau_shifted of the first release after
it, tau_last on the last day. quality: bits a byte of held-out answers (math, airline) by the served weights, asked through the
front before the first day and after the last. releases: champions of the week, the first included. budget: runs and device
hours of the decisions, and what is allowed.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import urllib3

from benchmarks.house import House
from benchmarks.one_case import PROJECT
from benchmarks.record import record
from benchmarks.simulated_clock import SimulatedClock
from benchmarks.vllm_environment import HOME, vllm_python
from benchmarks.week_figures import figures
from benchmarks.week_kills import Kills
from benchmarks.week_quality import bits_a_byte
from benchmarks.week_recipe import QUICK, WORKLOAD, Size, write_recipe
from benchmarks.week_rows import WeekRows
from benchmarks.week_traffic import Answer, ask
from pipelines.contract.recipe import load_recipe
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.launching.processes import child_environment, python_module
from resources.releases.release import read_release
from resources.sources.unread_objects import new_objects

AT_A_TIME = 4
MORNING, NIGHT = timedelta(hours=10), timedelta(hours=24, minutes=10)
STARTS_WITHIN_S, SHIPS_WITHIN_S, NIGHT_S, SWITCHES_WITHIN_S = 900.0, 600.0, 2_400.0, 600.0
LOOKS_EVERY_S, QUIET_LOOKS = 4.0, 3
MINUTE = timedelta(seconds=65)
AT_WORK = [getattr(dg.DagsterRunStatus, name) for name in ("QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING")]
SERVER_WORDS = ("--enforce-eager", "--max-model-len", "2048", "--no-enable-prefix-caching")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 small days; nothing is recorded")
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds models/house and data/")
    parser.add_argument("--vllm", type=Path, default=HOME, help="vLLM's environment; made there where it is missing")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--folder", type=Path, help="keep lake and logs here; what is finished there is not made again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-week-") as made:
        folder = (given.folder or Path(made)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        week = Week(folder, given.shared, vllm_python(given.vllm), QUICK if given.quick else Size(), given.seed)
        record("week", week.run(), keep=not given.quick)


class Week:
    """folder: of everything that is written. python: vLLM's."""

    def __init__(self, folder: Path, shared: Path, python: Path, size: Size, seed: int):
        self.folder, self.size, self._python, self._began = folder, size, python, time.monotonic()
        self._house = House(shared, shared)
        self._rows = WeekRows(shared, WORKLOAD, size.shift, size.broken, size.days)
        self._clock = SimulatedClock(folder / "clock", datetime.now(UTC))
        self._start = self._clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
        os.environ.update(
            self._clock.environment()
            | {
                "MILLRACE_USER": "benchmark",
                "OMP_NUM_THREADS": "1",
                "OMP_WAIT_POLICY": "PASSIVE",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            }
        )
        os.environ.pop("MILLRACE_HOME", None)
        self._kills = Kills(seed, size.days, str(folder))
        self._recipe, self._captured = folder / "recipe.yaml", folder / "captured"
        self._url = f"http://127.0.0.1:{free_port()}"
        self.answers: dict[int, list[Answer]] = {}
        self.approved: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        """The figures."""
        first = self._first_release()
        up, began = self._up(), time.monotonic()
        try:
            self._until(lambda: self._serving() == [first], STARTS_WITHIN_S, "the first release does not answer")
            quality = [bits_a_byte(self._url, WORKLOAD, self._house.shared)]
            for day in range(1, self.size.days + 1):
                self._day(day)
            quality.append(bits_a_byte(self._url, WORKLOAD, self._house.shared))
        except BaseException:
            print((self.folder / "up.log").read_text()[-4_000:], flush=True)
            raise
        finally:
            up.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                up.wait(240)
        return figures(self._lake, WORKLOAD, self.size, self._start, self.answers, self._kills, self.approved, quality) | {
            "week_s": round(time.monotonic() - began)
        }

    def _first_release(self) -> str:
        """From the days before, up to its approval; returns its version."""
        days = [(self._start - timedelta(back)).date() for back in range(self.size.before_days, 0, -1)]
        self._rows.write_history(self._captured, days, self.size.before_rows)
        write_recipe(self._recipe, self.size, self._house.target, self._captured, days[0])
        self._millrace("run", str(self._recipe), "--lake", str(self.folder / "lake"))
        self._lake = LakeLayout.open(self.folder / "lake", create=False)
        candidate = Endpoint(self._lake, WORKLOAD).read().candidate
        if candidate is None:
            raise SystemExit("the days before the week gave no release")
        self._approve(candidate, 0)
        return candidate

    def _up(self) -> subprocess.Popen[bytes]:
        port = self._url.rpartition(":")[2]
        words = [
            "up",
            str(self._recipe),
            "--lake",
            str(self._lake.root),
            "--port",
            str(free_port()),
            "--serve",
            f"{WORKLOAD}:{port}",
            "--capture",
            str(self._captured),
            "--program",
            str(self._python),
            *(f"--argument={word}" for word in SERVER_WORDS),
        ]
        with (self.folder / "up.log").open("w") as log:
            return subprocess.Popen(
                python_module("pipelines.cli", *words),
                env=child_environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _day(self, day: int) -> None:
        self._clock.jump_to(self._start + timedelta(days=day) + MORNING)
        requests = self._rows.asked(day, self.size.requests)
        self.answers[day] = ask(self._url, requests, AT_A_TIME, lambda over: self._kills.while_asked(day, over / len(requests)))
        with (self.folder / "answers.jsonl").open("a") as file:
            file.writelines(f"{json.dumps({'day': day, **asdict(answer)})}\n" for answer in self.answers[day])
        self._told(day, f"{sum(bool(each.problem) for each in self.answers[day])} of {len(requests)} requests failed")
        self._until(self._is_shipped, SHIPS_WITHIN_S, "captured traffic is not shipped")
        self._until(lambda: not self._is_at_work(day), NIGHT_S, "a run is at work")
        self._clock.jump_to(self._start + timedelta(days=day) + NIGHT)
        self._night(day)

    def _night(self, day: int) -> None:
        """Until logs are read and nothing is at work; minutes pass while nothing is. A release that comes is approved, once."""
        until, quiet = time.monotonic() + NIGHT_S, 0
        while quiet < QUIET_LOOKS and time.monotonic() < until:
            time.sleep(LOOKS_EVERY_S)
            if self._is_at_work(day):
                quiet = 0
                continue
            quiet = 0 if self._has_unread() else quiet + 1
            self._clock.jump_to(self._clock.now() + MINUTE)  # sensors look once a minute
            if len(self.approved) < 2 and (candidate := self._candidate()) is not None:
                self._approve(candidate, day)
                self._until(lambda named=candidate: self._serving() == [named], SWITCHES_WITHIN_S, "it is not served")
        self._told(day, "night")

    def _candidate(self) -> str | None:
        """A release whose gates hold and that is not the champion's."""
        aliases = Endpoint(self._lake, WORKLOAD).read()
        named = aliases.candidate
        if named in (None, aliases.champion, aliases.previous):
            return None
        return named if read_release(self._lake.artefacts("release") / WORKLOAD / named).passed else None

    def _approve(self, release: str, day: int) -> None:
        self._millrace("approve", release, "--lake", str(self._lake.root), "--reason", "read 20 answers", "--yes")
        self.approved.append({"day": day, "release": release})

    def _is_at_work(self, day: int) -> bool:
        """Whether a run is at work or queued. Its worker may be killed."""
        self._kills.at_night(day)
        with dg.DagsterInstance.from_config(str(self._lake.dagster_home)) as instance:
            return instance.get_runs_count(dg.RunsFilter(statuses=AT_WORK)) > 0

    def _has_unread(self) -> bool:
        sources = load_recipe(self._recipe).sources
        return bool(new_objects(Tables(self._lake), WORKLOAD, sources, {}, 100_000).objects)

    def _is_shipped(self) -> bool:
        with suppress(urllib3.exceptions.HTTPError, ValueError, KeyError):
            said = json.loads(urllib3.request("GET", f"{self._url}/capture/status", retries=False, timeout=5).data)
            return not said["waiting"]["segments"] and not said["waiting"]["bytes"]
        return False

    def _serving(self) -> list[str]:
        """The releases that answer new requests."""
        with suppress(urllib3.exceptions.HTTPError, ValueError, KeyError):
            said = json.loads(urllib3.request("GET", f"{self._url}/health", retries=False, timeout=5).data)
            return [each["release"] for each in said["releases"]]
        return []

    def _millrace(self, *words: str) -> None:
        log = self.folder / f"{words[0]}-{time.monotonic_ns()}.log"
        with log.open("w") as written:
            done = subprocess.run(
                python_module("pipelines.cli", *words), env=child_environment(), stdout=written, stderr=subprocess.STDOUT
            )
        if done.returncode:
            raise SystemExit(f"millrace {' '.join(words[:2])} failed:\n{log.read_text()[-4_000:]}")

    def _until(self, condition, seconds: float, otherwise: str) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise SystemExit(f"{otherwise} within {seconds:g} s")
            time.sleep(1)

    def _told(self, day: int, what: str) -> None:
        print(
            f"{time.monotonic() - self._began:6.0f} s  day {day}: {what}; it is {self._clock.now():%a %H:%M}; "
            f"{self._serving()} answers",
            flush=True,
        )


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    main()
