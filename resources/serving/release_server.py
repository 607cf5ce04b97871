"""The server of one release: verified, started, and tried before it takes traffic.

Gates, digests of all files, signature and approvals are checked at every start, also of a release that served before."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.evaluation import Scores, SmokePrompt, SmokeResult, TriedServer, run_smoke_set, schema_of
from model_ops.files import write_json
from model_ops.jobs import ModelError, size
from model_ops.serving import SERVES_FLOAT32, NotRunnable, RunningServer, ServerFailed, dtype_words, running_server
from resources.composing import prompt_of
from resources.endpoints import approved_by, recheck
from resources.gateway import Backend, server_sampling
from resources.lake import LakeLayout
from resources.launching import child_environment, python_module
from resources.manifests import Input, ManifestError, read_manifest
from resources.releases import Release, ReleaseError, read_release
from resources.serving.programs import Program, ServeError, command_of

PROMPTS, SCHEMA_ROWS = 12, 4
MOST_CHARACTERS = 4_000
"""Longer prompts are left out: the set has a long prompt of its own."""
MOST_READ = 2_000
COLUMNS = ("row_id", "messages", "tools", "request")


@dataclass(frozen=True)
class SmokeRows:
    """with_schema: rows whose request asked for a JSON schema. missing: why there is no prompt; "" if there is one."""

    prompts: list[SmokePrompt]
    with_schema: list[SmokePrompt]
    missing: str


def smoke_rows(lake: LakeLayout, directory: Path) -> SmokeRows:
    """Up to PROMPTS prompts, and up to SCHEMA_ROWS with a schema."""
    prompts: list[SmokePrompt] = []
    with_schema: list[SmokePrompt] = []
    try:
        for number, prompt in enumerate(_prompts(_test_rows(lake, directory))):
            if len(prompts) < PROMPTS:
                prompts.append(prompt)
            if schema_of(prompt) is not None and len(with_schema) < SCHEMA_ROWS:
                with_schema.append(prompt)
            if number == MOST_READ or (len(prompts) == PROMPTS and len(with_schema) == SCHEMA_ROWS):
                break
    except (ManifestError, OSError, pa.ArrowException) as error:
        return SmokeRows([], [], f"no held-out row was asked: {' '.join(str(error).split())}")
    return SmokeRows(prompts, with_schema, "" if prompts else "no held-out row is short enough to be asked")


def _test_rows(lake: LakeLayout, directory: Path) -> Path:
    """The test rows of the dataset behind the release's report. Raises ManifestError if one of them is gone."""
    report = _input(read_manifest(directory).inputs, "evaluation_report")
    dataset = _input(read_manifest(lake.artefacts(report.kind) / report.name / report.version).inputs, "sft_dataset")
    path = lake.artefacts(dataset.kind) / dataset.name / dataset.version / "test.parquet"
    lake.mirror.fetch_files([path])
    return path


def _input(inputs: list[Input], name: str) -> Input:
    for item in inputs:
        if item.kind == "dataset" and item.name.endswith(f"/{name}"):
            return item
    raise ManifestError(f"the release names no {name}")


def _prompts(path: Path) -> Iterator[SmokePrompt]:
    with pq.ParquetFile(path) as file:
        columns = [name for name in COLUMNS if name in file.schema_arrow.names]
        for batch in file.iter_batches(256, columns=columns):
            for row in batch.to_pylist():
                row = {name: row.get(name) for name in COLUMNS}
                messages = prompt_of(row)
                if messages and sum(len(str(said.get("content") or "")) for said in messages) <= MOST_CHARACTERS:
                    yield SmokePrompt(
                        str(row["row_id"]),
                        messages,
                        json.loads(row["tools"]) if row["tools"] else None,
                        json.loads(row["request"]) if row["request"] else {},
                    )


MOST_OF_FREE = 0.5
"""Share of the free memory that the target may take in float32."""
LONGEST_S = 900
NOT = "not compared with the target's own layers"


def own_layers(target: Path) -> Scores:
    """What it returns raises ModelError if the target does not fit beside its server, or cannot be scored."""

    def scores(answers: list[dict[str, Any]]) -> dict[str, Any]:
        needed, free = _float32_bytes(target), psutil.virtual_memory().available
        if needed > MOST_OF_FREE * free:
            raise ModelError(f"{NOT}: they may take {size(needed)}, and {size(free)} of memory are free")
        command = python_module("model_ops.evaluation.smoke.own_layers", str(target))
        try:
            done = subprocess.run(
                command,
                input=json.dumps(answers),
                capture_output=True,
                text=True,
                timeout=LONGEST_S,
                env=child_environment(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES=""),
            )
            return json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired as error:
            raise ModelError(f"{NOT}: that took more than {LONGEST_S} s") from error
        except (ValueError, IndexError) as error:  # its output is not quoted: it may hold what was asked
            raise ModelError(f"{NOT}: their process ended with exit code {done.returncode}") from error

    return scores


def _float32_bytes(target: Path) -> int:
    """At most so many bytes: stored weights have two bytes or more, quantized ones one or a half."""
    stored = sum(path.stat().st_size for path in target.glob("*.safetensors"))
    quantized = "quantization_config" in json.loads((target / "config.json").read_text())
    return stored * (8 if quantized else 2)


UNAPPROVED = "candidate"
"""The alias whose release may be served before anybody approved it."""


@dataclass(frozen=True)
class ServeSettings:
    """logs: folder of the servers' logs and of the smoke set's results. arguments: passed on to the server. start_s: seconds
    that a server may take until it can be asked. smoke: whether it is tried. timeout_s: of one request of the smoke set."""

    program: Program
    logs: Path
    arguments: list[str] = field(default_factory=list)
    start_s: float = 900.0
    smoke: bool = True
    timeout_s: float = 300.0


def verified_release(lake: LakeLayout, workload: str, version: str, alias: str) -> Path:
    """The release's directory. Raises ServeError if a file changed or is gone, a gate is missed, a signature does not hold, or
    it is not approved."""
    directory = lake.artefacts("release") / workload / version
    lake.mirror.pull()
    if not (directory / "release.json").exists():
        raise ServeError(
            f"the alias {alias} of {workload} names release {version}, which is not in {lake.place}: restore it "
            "from a copy, or move the alias"
        )
    try:
        if problems := recheck(lake, directory):
            raise ServeError(f"release {version} is not served: {'; '.join(problems)}")
        if alias != UNAPPROVED:
            approved_by(lake, directory)
    except (ReleaseError, ManifestError) as error:
        raise ServeError(f"release {version} is not served: {error}") from error
    return directory


def try_release(
    server: TriedServer, lake: LakeLayout, directory: Path, settings: ServeSettings, name: str, check: Callable[[], None]
) -> list[SmokeResult]:
    """Asks a server of a release the smoke set, and writes what was found as <logs>/<name>.smoke.json."""
    release, rows = read_release(directory), smoke_rows(lake, directory)
    findings = run_smoke_set(server, rows.prompts, rows.with_schema, own_layers(lake.root / release.target.path), check)
    if rows.missing:
        findings.append(SmokeResult("held-out rows", None, rows.missing))
    write_json(
        settings.logs / f"{name}.smoke.json",
        {
            "release": directory.name,
            "workload": release.workload,
            "server": server.kind,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "findings": [asdict(finding) for finding in findings],
        },
    )
    return findings


class ReleaseServer:
    """A server that runs. backend: its address for the front."""

    def __init__(
        self,
        directory: Path,
        release: Release,
        program: Program,
        log: Path,
        server: RunningServer,
        open_: ExitStack,
        sampling: Mapping[str, Any],
    ):
        self.directory, self.release, self.program, self.log = directory, release, program, log
        self.backend = Backend(server.url, directory.name, digest=release.target.digest, sampling=sampling)
        self.began_s = time.monotonic()
        self._server, self._open = server, open_

    @classmethod
    def start(
        cls,
        lake: LakeLayout,
        directory: Path,
        settings: ServeSettings,
        check: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> ReleaseServer:
        """check: called while it starts, and may raise. Raises ServeError if it does not come up in time."""
        log, program = settings.logs / f"{directory.name}.log", settings.program
        settings.logs.mkdir(parents=True, exist_ok=True)
        release = read_release(directory)
        target = lake.root / release.target.path
        chosen = dtype_words(program.kind, target, settings.arguments) if program.kind == "vllm" else []
        if chosen:
            say(f"release {directory.name}: {SERVES_FLOAT32}")
        with ExitStack() as stack:
            command = stack.enter_context(command_of(program, lake, directory))
            try:
                server = stack.enter_context(
                    running_server(
                        [*command.words, *settings.arguments, *chosen],
                        log=log,
                        start_s=settings.start_s,
                        folder=command.folder,
                        environment=command.environment,
                        check=check,
                    )
                )
            except (ServerFailed, NotRunnable) as error:
                raise ServeError(f"{program.kind} did not start release {directory.name}: {error} (log: {log})") from error
            sampling = server_sampling(target / "generation_config.json")
            return cls(directory, release, program, log, server, stack.pop_all(), sampling)

    @property
    def what(self) -> str:
        """What it serves."""
        return f"release {self.directory.name}"

    @property
    def server(self) -> ReleaseServer:
        """Itself: no other release answers from it."""
        return self

    @property
    def described(self) -> str:
        """How it is served, in words."""
        return self.program.kind + (", drafting" if self.drafts else "")

    @property
    def drafts(self) -> bool:
        """Whether the server was told to draft: the release's script decides."""
        script = self.directory / f"serve-{self.program.kind}.sh"
        return self.program.kind != "transformers" and "--speculative-" in script.read_text()

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self._server.ends_within(0)

    def smoke(self, lake: LakeLayout, settings: ServeSettings, check: Callable[[], None] = lambda: None) -> list[SmokeResult]:
        """Tries it before it takes traffic. A lookup may find nothing to draft; a drafter always drafts."""
        drafts = self.drafts and self.release.served_drafting.method == "drafter"
        tried = TriedServer(self.backend.url, self.release.workload, self.program.kind, drafts, settings.timeout_s)
        return try_release(tried, lake, self.directory, settings, self.directory.name, check)

    def close(self) -> None:
        """Ends the server's processes. Requests in flight are lost: drain it first."""
        self._open.close()
