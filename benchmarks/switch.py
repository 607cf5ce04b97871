"""Whether a switch of releases loses a request: promoted and rolled back ten times under load, streams included.

    python -m benchmarks.switch --lake demo/quick/lake      # the demo's release in vLLM; needs its CPU environment (serve-env)
    python -m benchmarks.switch --lake demo/quick/lake --adapters      # two adapters on its base model, in one server
    python -m benchmarks.switch --quick                     # a stand-in for vLLM, which has no model

The lake's newest release is copied, with a second one that differs in its number of drafted tokens. With --adapters, both are
LoRA adapters with random weights on the lake's base model, and a second workload has one, too. `millrace serve --watch`
serves the champion. A load of AT_A_TIME clients, half of whose requests are streams, asks before the first switch and during
all of them. requests, failed: all requests, and those without a whole answer; none is sent again. p99_ratio: the 99th
percentile of seconds during the switches over that before. switch_s: median of the seconds from the decision until the other
release answers, its start and its smoke set included. On two cores the server that starts takes time from the one that answers.
"""

import argparse
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import urllib3

from benchmarks.random_adapter import random_adapter
from benchmarks.record import record
from benchmarks.small_adapter import small_adapter
from benchmarks.small_release import small_release
from benchmarks.stand_in_vllm import stand_in_vllm
from benchmarks.vllm_environment import vllm_python
from model_ops.speculators.registry import ARCHITECTURES
from resources.artefacts.registry import Registry
from resources.endpoints.approvals import record_approval, roll_back
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.launching.processes import child_environment, python_module
from resources.manifests.manifest import Manifest, read_manifest
from resources.releases.release import ReleaseRef, read_release, write_release
from resources.releasing.attestations import write_attestations

BY = Actor("benchmark", "MILLRACE_USER")
OTHER = "support"
ROUNDS, AT_A_TIME = 10, 8
REQUESTS_BEFORE, REQUESTS = 200, 2_000
STARTS_WITHIN_S = 900.0
VLLM_WORDS = ["--enforce-eager", "--max-model-len", "512"]
"""What a CPU needs: no compilation, and a context that its memory holds twice."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--lake", type=Path, help="lake of a finished demo, such as demo/quick/lake")
    place.add_argument("--quick", action="store_true", help="a stand-in for vLLM")
    parser.add_argument("--adapters", action="store_true", help="switch adapters of one server instead of servers")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often the second release is promoted and rolled back")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="least number of requests")
    parser.add_argument("--no-smoke", action="store_true", help="switch without trying the servers first")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        home = Path(folder)
        if given.quick:
            lake = LakeLayout.open(home / "lake")
            one, two = _made(lake, small_adapter if given.adapters else small_release)
            program, words, server, pause_s = stand_in_vllm(home / "vllm", token_s=0.004), [], "stand-in", 0.05
        else:
            lake, one, two = (_adapters if given.adapters else _copied)(given.lake, home)
            program, words, server, pause_s = vllm_python(), VLLM_WORDS, "vLLM 0.32 (CPU)", 1.0
        beside = [_beside(lake, given.lake)] if given.adapters else []
        smoke = ["--no-smoke"] if given.quick or given.no_smoke else []  # the stand-in has no model to compare with
        found = _measured(lake, one, two, home, program, [*beside, *smoke, "--", *words], given.rounds, given.requests, pause_s)
    record("switch_adapters" if given.adapters else "switch", {"server": server, **found}, keep=not given.quick)


def _adapters(source: Path, home: Path) -> tuple[LakeLayout, Path, Path]:
    """Two releases of form adapter on the base model of a lake."""
    lake, base = LakeLayout.open(home / "lake"), _base_of(source)
    return lake, *_made(lake, lambda lake, seed: random_adapter(lake, base, "tutor", seed))


def _made(lake: LakeLayout, make: Callable[[LakeLayout, int], Path]) -> tuple[Path, Path]:
    """Two releases; the first is promoted before the second makes it an older one."""
    one = make(lake, 1)
    _promote(lake, one, BY)
    return one, make(lake, 2)


def _beside(lake: LakeLayout, source: Path | None) -> str:
    """Approves a release of a second workload on the same base, and returns the workload."""
    release = random_adapter(lake, _base_of(source), OTHER, seed=3) if source else small_adapter(lake, 1, OTHER)
    _promote(lake, release, BY)
    return OTHER


def _base_of(source: Path) -> Path:
    made = sorted(source.glob("models/*/base_model/*/manifest.json"), key=lambda path: read_manifest(path.parent).created_at)
    if not made:
        raise SystemExit(f"{source} has no base_model: give the lake of a finished demo")
    return made[-1].parent


def _copied(source: Path, home: Path) -> tuple[LakeLayout, Path, Path]:
    """The newest release of a lake in a lake of its own, and a second one of the same models."""
    shutil.copytree(
        source,
        home / "lake",
        symlinks=True,
        ignore=shutil.ignore_patterns("tables", ".dagster", ".mirror", "endpoints", ".serving"),
    )
    lake = LakeLayout.open(home / "lake")
    made = {path.parent: read_manifest(path.parent).created_at for path in lake.root.glob("releases/*/*/manifest.json")}
    one = max(made, key=lambda path: made[path])
    return lake, one, _second(lake, one)


def _second(lake: LakeLayout, one: Path) -> Path:
    """A release of the same models that drafts one token more."""
    release, manifest = read_release(one), read_manifest(one)
    registry = Registry(lake, release.workload)
    served: list[Manifest] = [read_manifest(lake.root / part.path) for part in (release.target, release.speculator) if part]
    k = release.num_speculative_tokens + 1
    draft = registry.draft("release", "release", "release", ("resources/releases/release.py",), {"k": k}, manifest.inputs)
    made = write_release(
        draft.directory,
        release.workload,
        served[0],
        served[1] if served[1:] else None,
        k,
        release.gates,
        ARCHITECTURES[release.architecture].serving,
        release.policy,
    )
    write_attestations(draft.directory, lake, made, served, "benchmark")
    return registry.directory(registry.finish(draft, {}))


def _measured(
    lake: LakeLayout,
    one: Path,
    two: Path,
    home: Path,
    program: Path,
    words: list[str],
    rounds: int,
    requests: int,
    pause_s: float,
) -> dict[str, Any]:
    workload = one.parent.name
    if Endpoint(lake, workload).read().champion != one.name:
        _promote(lake, one, BY)
    answers, seconds = home / "answers.jsonl", []
    with _serving(lake, workload, program, words, home) as url, _load(url, workload, answers, pause_s):
        _until(lambda: len(_read(answers)) >= min(REQUESTS_BEFORE, requests // 4), "the load makes no request")
        switching_at = time.time()
        for _ in range(rounds):
            for move, release in ((_promote, two), (roll_back, one)):
                began = time.monotonic()
                move(lake, release, BY)
                _until(
                    lambda release=release: _releases(url, workload) == [release.name],
                    f"release {release.name} does not answer",
                )
                seconds.append(time.monotonic() - began)
        _until(lambda: len(_read(answers)) >= requests, "the load makes no request")
    found = _read(answers)
    before, during = (
        [each["seconds"] for each in found if (each["at"] < switching_at) is is_before and not each["problem"]]
        for is_before in (True, False)
    )
    p99_before, p99_during = (float(np.percentile(values, 99)) for values in (before, during))
    return {
        "requests": len(found),
        "streams": sum(each["stream"] for each in found),
        "failed": sum(each["problem"] is not None for each in found),
        "problems": sorted({each["problem"] for each in found if each["problem"]}),
        "switches": len(seconds),
        "p99_ratio": round(p99_during / p99_before, 2),
        "p99_s": {"before": round(p99_before, 3), "during": round(p99_during, 3)},
        "p50_s": {"before": round(median(before), 3), "during": round(median(during), 3)},
        "switch_s": round(median(seconds), 1),
        "answered": {
            "first": sum(each["release"] == one.name for each in found),
            "second": sum(each["release"] == two.name for each in found),
        },
    }


def _promote(lake: LakeLayout, release: Path, by: Actor) -> None:
    """What `millrace approve` does."""
    record_approval(lake, release, by)
    Endpoint(lake, release.parent.name).promote(ReleaseRef.of(release), by)


@contextmanager
def _serving(lake: LakeLayout, workload: str, program: Path, words: list[str], home: Path):
    """`millrace serve --watch` in a process of its own; yields its address when it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = python_module(
        "pipelines.cli",
        "serve",
        workload,
        "--lake",
        str(lake.root),
        "--watch",
        "--port",
        str(port),
        "--program",
        str(program),
        "--every",
        "0.2",
        *words,
    )
    log = home / "serve.log"
    with log.open("w") as written:
        process = subprocess.Popen(
            command,
            stdout=written,
            stderr=subprocess.STDOUT,
            env=child_environment(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind"),
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _until(lambda: bool(_releases(url)) or process.poll() is not None, "no release answers")
        if process.poll() is not None:
            raise SystemExit(f"millrace serve ended:\n{log.read_text()}")
        yield url
    finally:
        process.terminate()
        process.wait()
        print(log.read_text())


@contextmanager
def _load(url: str, model: str, answers: Path, pause_s: float):
    command = python_module("benchmarks.switch_load", url, model, "--at-a-time", str(AT_A_TIME), "--pause", str(pause_s))
    with answers.open("w") as written:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=written, env=child_environment())
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()


def _releases(url: str, workload: str = "") -> list[str]:
    """The releases that answer new requests, of a workload if one is named; [] if none does."""
    with suppress(urllib3.exceptions.HTTPError, ValueError, KeyError):
        health = urllib3.request("GET", f"{url}/health", retries=False)
        found = json.loads(health.data)["releases"]
        return [each["release"] for each in found if not workload or each.get("model", workload) == workload]
    return []


def _read(answers: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answers.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _until(condition, otherwise: str) -> None:
    until = time.monotonic() + STARTS_WITHIN_S
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(otherwise)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
