"""The server of one release: verified, started, and tried before it takes traffic.

Gates, digests of all files, signature and approvals are checked at every start, also of a release that served before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_ops.evaluation import SmokeResult, TriedServer, run_smoke_set
from model_ops.files import write_json
from model_ops.serving import SERVES_FLOAT32, NotRunnable, RunningServer, ServerFailed, dtype_words, running_server
from resources.endpoints import approved_by, recheck
from resources.gateway import Backend, server_sampling
from resources.lake import LakeLayout
from resources.manifests import ManifestError
from resources.releases import Release, ReleaseError, read_release
from resources.serving.programs import Program, ServeError, command_of
from resources.serving.smoke import own_layers, smoke_rows

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
