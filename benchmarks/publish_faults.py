"""Kills while a release is published: does an alias ever name a release that is not all there?

    python -m benchmarks.publish_faults            # 20 kills, half of them on a disk, half in a bucket; some minutes
    python -m benchmarks.publish_faults --quick    # 6 kills

A process makes a release (a target of 12 MiB and a drafter, in files of 1 MiB), nominates, approves and promotes it, and is
killed with SIGKILL at a random moment of that (seeded). In a bucket (a local moto server) it uploads the weights first and
the manifest last, from a mirror of its own. After each kill, and all the while, a reader looks at every alias as a server's
machine would: a fresh machine fetches the release that an alias names, with its models, and checks every file against its
digest. Then a process without a kill completes the same release, and the next one begins.

kills: processes that were killed before they ended. incomplete: looks at which an alias named a release that was not all there.
completed: releases that the next process completed and approved after a kill. at: how much of the work was done at each kill,
as a share of an undisturbed run's seconds.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.record import record
from benchmarks.s3_server import s3_server
from benchmarks.small_release import small_release

KILLS, QUICK_KILLS, WEIGHTS_MIB, WORKLOAD, SEED = 20, 6, 12, "tutor", 7
READY = "ready"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few kills; nothing is recorded")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        _publish(*json.loads(given.step))
        return
    kills = QUICK_KILLS if given.quick else KILLS
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder, s3_server() as server:
        home = Path(folder)
        os.environ.update(server.environment)
        server.bucket("bench")
        found = {
            "disk": _killed(home / "on-disk", str(home / "lake"), kills // 2),
            "s3": _killed(home / "in-bucket", "s3://bench/lake", kills - kills // 2),
        }
    total = {name: sum(each[name] for each in found.values()) for name in ("kills", "incomplete", "completed")}
    record("publish_faults", {**total, **found}, keep=not given.quick)


def _publish(lake: str, number: int) -> None:
    """Makes a release and approves it, as a run with `approval: automatic` does."""
    from resources.endpoints.approvals import record_approval
    from resources.endpoints.endpoint_log import Actor
    from resources.endpoints.endpoints import Endpoint
    from resources.lake.lake import LakeLayout
    from resources.releases.release import ReleaseRef

    place = LakeLayout.open(lake)
    place.mirror.pull()
    print(READY, flush=True)
    directory = small_release(place, number, WORKLOAD, drafts=True, weights_mib=WEIGHTS_MIB)
    endpoint, by = Endpoint(place, WORKLOAD), Actor("benchmark", "benchmark", f"release {number}")
    endpoint.nominate(ReleaseRef.of(directory))
    record_approval(place, directory, by)
    endpoint.promote(ReleaseRef.of(directory), by)


def _killed(home: Path, lake: str, kills: int) -> dict[str, object]:
    home.mkdir()
    draw = random.Random(SEED)
    _undisturbed(home, lake, 0)
    seconds = _undisturbed(home, lake, 1)
    looks = _Looks(home, lake)
    at, number, completed = [], 2, 0
    while len(at) < kills:
        wait = draw.random() * seconds
        process = _started(home, lake, number)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        was_killed = process.wait() == -signal.SIGKILL  # else it had ended: another moment is drawn for the next release
        if was_killed:
            at.append(round(wait / seconds, 2))
            looks.look()
        _undisturbed(home, lake, number)
        completed += was_killed and looks.look() == number
        number += 1
    looks.stop()
    return {"kills": len(at), "incomplete": looks.incomplete, "completed": completed, "looks": looks.made, "at": sorted(at)}


def _started(home: Path, lake: str, number: int) -> subprocess.Popen[str]:
    """A process that has its lake open and begins to publish."""
    command = [sys.executable, "-m", "benchmarks.publish_faults", "--step", json.dumps([lake, number])]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "MILLRACE_MIRRORS": str(home / "publisher")}
    )
    if process.stdout.readline().strip() != READY:
        raise SystemExit("a publisher did not begin: its error stands above")
    return process


def _undisturbed(home: Path, lake: str, number: int) -> float:
    """Seconds that a publisher takes to the end."""
    process, began = _started(home, lake, number), time.monotonic()
    if process.wait():
        raise SystemExit("a publisher failed: its error stands above")
    return time.monotonic() - began


class _Looks:
    """What fresh machines find under the endpoint's aliases, on demand and all the while."""

    def __init__(self, home: Path, lake: str):
        self.home, self.lake, self.made, self.incomplete = home, lake, 0, 0
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._all_the_while)
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def look(self) -> int | None:
        """The number of the champion's release, as a machine finds it that never saw the lake."""
        from resources.endpoints.approvals import recheck
        from resources.endpoints.endpoints import Endpoint
        from resources.lake.lake import LakeLayout
        from resources.releases.release import read_release

        with self._lock:
            self.made += 1
            os.environ["MILLRACE_MIRRORS"] = str(self.home / f"reader-{self.made}")
            place = LakeLayout.open(self.lake)
            place.mirror.pull()
            aliases = Endpoint(place, WORKLOAD).read()
            for version in set(aliases.all().values()):
                directory = place.artefacts("release") / WORKLOAD / version
                try:
                    problems = recheck(place, directory)
                except Exception as error:  # whatever it is: the release cannot be served
                    problems = [str(error)]
                if problems:
                    self.incomplete += 1
                    print(f"{version}: {'; '.join(problems)}", file=sys.stderr)
            champion = aliases.champion and read_release(place.artefacts("release") / WORKLOAD / aliases.champion)
            shutil.rmtree(self.home / f"reader-{self.made}", ignore_errors=True)
        return champion.num_speculative_tokens if champion else None

    def _all_the_while(self) -> None:
        while not self._end.wait(0.2):
            self.look()


if __name__ == "__main__":
    main()
