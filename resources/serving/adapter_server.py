"""A vLLM server on a base model, into which releases of form adapter are loaded and from which they are taken while it answers.

Each release is loaded under a name and from a path of its own, WORKLOAD@VERSION and the release's adapter/, so that no cached
prefix of other weights is reused. vLLM opens the two requests that do this on the server's own port, which listens on the
loopback only; the front does not pass them on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3

from model_ops.completions import OpenAiApi
from model_ops.drafting import Drafting
from model_ops.evaluation import SmokeResult, TriedServer
from model_ops.files import template_files
from model_ops.serving import (
    PREFIX,
    SERVES_FLOAT32,
    NotRunnable,
    RunningServer,
    ServerFailed,
    Service,
    dtype_words,
    fingerprint,
    lora_flags,
    running_server,
    server_environment,
    service_environment,
    tool_words,
    words_of,
)
from resources.gateway import Backend, Naming, server_sampling
from resources.lake import LakeLayout
from resources.releases import Release, read_release
from resources.serving.programs import ServeError
from resources.serving.release_server import ServeSettings, try_release

BASE_NAME = "millrace-base"
"""The server's name of the base model, which no client is offered."""


@dataclass(frozen=True)
class SharedBase:
    """base, tokenizer, generation: digests. place: the base model in the lake; directory, adapter: of the release that these
    are read from, whose tokenizer, generation_config.json and logging the server uses."""

    base: str
    tokenizer: str
    generation: str
    zero_retention: bool
    place: str = field(compare=False)
    directory: Path = field(compare=False)
    adapter: str = field(compare=False)
    drain_s: int = field(compare=False)

    @classmethod
    def of(cls, directory: Path, release: Release) -> SharedBase:
        """Raises ServeError for a release of another form."""
        if release.base is None or release.adapter is None:
            raise ServeError(
                f"release {directory.name} of {release.workload} is a whole model, not an adapter, so no server is shared "
                f"with it: serve it alone (millrace serve {release.workload}), or make it with release.form: adapter"
            )
        config = directory / "generation_config.json"
        return cls(
            release.base.digest,
            release.adapter.tokenizer,
            _digest_of(_read(config)),
            release.service.zero_retention,
            release.base.path,
            directory,
            release.adapter.path,
            release.service.drain_s,
        )

    def differences(self, other: SharedBase) -> list[str]:
        """What another release has otherwise, in words."""
        return [
            what
            for what, same in (
                (f"its base model is {other.base[:12]} and not {self.base[:12]}", self.base == other.base),
                ("its tokenizer or chat template is another one", self.tokenizer == other.tokenizer),
                ("its generation_config.json is another one", self.generation == other.generation),
                ("only one of them retains nothing (release.zero_retention)", self.zero_retention == other.zero_retention),
            )
            if not same
        ]

    @property
    def fingerprint(self) -> str:
        """What the server writes into every answer; the front writes the release's in its place."""
        return f"{PREFIX}-base-{self.base}"

    def words(self, lake: LakeLayout, rank: int, adapters: int, drafting: Drafting) -> list[str]:
        """What follows `vllm serve`. rank: of the largest adapter. adapters: how many may be loaded. Raises ValueError for a
        rank that vLLM does not serve."""
        service = Service(self.fingerprint, self.zero_retention, self.drain_s)
        place = lake.root / self.adapter
        model, tokens = str(lake.root / self.place), drafting.num_speculative_tokens
        words = words_of("vllm", model, BASE_NAME, None, None, tokens, drafting, service=service)
        words += ["--tokenizer", str(place), "--generation-config", str(self.directory), *lora_flags.lora_words(rank, adapters)]
        return words + tool_words(template_files.template_text(place))

    @property
    def shell(self) -> list[str]:
        """Words before the program: a core dump would hold prompts."""
        return ["sh", "-c", 'ulimit -c 0; exec "$@"', "sh"] if self.zero_retention else []

    def environment(self) -> dict[str, str]:
        service = Service(self.fingerprint, self.zero_retention, self.drain_s)
        return service_environment("vllm", service, str(self.directory)) | lora_flags.LOADS_AT_RUNTIME


def _digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


LOADS_WITHIN_S = 300.0
LONGEST_REASON = 200


@dataclass(eq=False)
class LoadedAdapter:
    """A release that the server has loaded."""

    directory: Path
    release: Release
    name: str
    """The server's name for it."""
    backend: Backend
    server: AdapterServer

    @property
    def described(self) -> str:
        """How it is served, in words."""
        return f"adapter on {self.server.what}"

    def smoke(self, lake: LakeLayout, settings: ServeSettings, check: Callable[[], None] = lambda: None) -> list[SmokeResult]:
        """Tries it before it takes traffic. Its answers are compared with the target's own layers, in which adapter and base
        are merged."""
        tried = TriedServer(self.backend.url, self.name, "vllm", False, settings.timeout_s)
        return try_release(tried, lake, self.directory, settings, f"{self.workload}-{self.version}", check)

    @property
    def workload(self) -> str:
        return self.release.workload

    @property
    def version(self) -> str:
        return self.directory.name


class AdapterServer:
    """A server that runs. rank: the largest that it takes."""

    def __init__(
        self,
        lake: LakeLayout,
        shared: SharedBase,
        rank: int,
        drafting: Drafting,
        log: Path,
        server: RunningServer,
        open_: ExitStack,
    ):
        self.shared, self.rank, self.drafting, self.log = shared, rank, drafting, log
        self.loaded: list[LoadedAdapter] = []
        self.began_s = time.monotonic()
        self._lake, self._server, self._open = lake, server, open_
        self._api = OpenAiApi(server.url, api_key=None, connections=2, timeout_s=LOADS_WITHIN_S, through_proxy=False)

    @classmethod
    def start(
        cls,
        lake: LakeLayout,
        shared: SharedBase,
        settings: ServeSettings,
        rank: int,
        adapters: int,
        drafting: Drafting,
        check: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> AdapterServer:
        """rank: of the largest adapter to load; --max-lora-rank among the settings' arguments goes before it. adapters: how
        many may be loaded at a time. check: called while it starts, and may raise. Raises ServeError for a program that is not
        vLLM, arguments that cannot be, and a server that does not come up."""
        program, log = settings.program, settings.logs / f"base-{shared.base[:12]}.log"
        if program.kind != "vllm":
            raise ServeError(f"adapters are served by vLLM, and the program is {program.kind}: name a vLLM with --program")
        flags = {word: word.partition("=")[0].replace("_", "-") for word in settings.arguments}
        if several := [word for word, flag in flags.items() if flag in lora_flags.SEVERAL_PROCESSES]:
            raise ServeError(
                f"{several[0]} starts several server processes, and vLLM loads an adapter into one of them: leave it out"
            )
        try:
            most = lora_flags.given_rank(settings.arguments) or lora_flags.served_rank(rank)
            words = [*shared.shell, *program.words, "serve", *shared.words(lake, most, adapters, drafting), *settings.arguments]
        except ValueError as error:
            raise ServeError(str(error)) from error
        settings.logs.mkdir(parents=True, exist_ok=True)
        lake.mirror.fetch(lake.root / shared.place)
        if chosen := dtype_words("vllm", lake.root / shared.place, settings.arguments):
            say(SERVES_FLOAT32)
            words += chosen
        with ExitStack() as stack:
            try:
                environment = {**server_environment(), **shared.environment()}
                starting = running_server(words, log=log, start_s=settings.start_s, environment=environment, check=check)
                server = stack.enter_context(starting)
            except (ServerFailed, NotRunnable) as error:
                raise ServeError(f"vllm did not start on base {shared.base[:12]}: {error} (log: {log})") from error
            return cls(lake, shared, most, drafting, log, server, stack.pop_all())

    @property
    def what(self) -> str:
        """What it serves."""
        return f"base {self.shared.base[:12]}"

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self._server.ends_within(0)

    def load(self, directory: Path) -> LoadedAdapter:
        """Loads a release. Raises ServeError for one that belongs to another server, is too large, or is refused by vLLM."""
        release = read_release(directory)
        named = f"release {directory.name} of {release.workload}"
        if differences := self.shared.differences(SharedBase.of(directory, release)):
            raise ServeError(f"{named} needs a server of its own: {'; '.join(differences)}")
        adapter = release.adapter
        if adapter is None:
            raise ServeError(f"{named} has no adapter: serve it alone")
        if adapter.rank > self.rank:
            raise ServeError(
                f"the adapter of {named} has rank {adapter.rank}, and the server was started for ranks up to "
                f"{self.rank}: start it again with -- {lora_flags.RANK_FLAG} {lora_flags.served_rank(adapter.rank)}"
            )
        place = self._lake.root / adapter.path
        name = f"{release.workload}@{directory.name}"
        self._ask("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(place)}, f"{named} was not loaded")
        listed = self._listed()
        if listed.get(name) != str(place):
            raise ServeError(f"{named} was not loaded: the server does not list it with {place} (log: {self.log})")
        own, digest = directory.name, release.target.digest
        naming = Naming(release.workload, name, fingerprint(own, digest), self.shared.fingerprint)
        sampling = server_sampling(directory / "generation_config.json")
        backend = Backend(self._server.url, own, digest=digest, sampling=sampling, naming=naming)
        loaded = LoadedAdapter(directory, release, name, backend, self)
        self.loaded.append(loaded)
        return loaded

    def unload(self, loaded: LoadedAdapter) -> None:
        """Takes a release out of the server. Drain it first: vLLM refuses later requests for it. Raises ServeError while
        the server still lists it."""
        otherwise = f"release {loaded.version} of {loaded.workload} was not unloaded"
        try:
            self._ask("/v1/unload_lora_adapter", {"lora_name": loaded.name}, otherwise)
        except ServeError:
            if loaded.name in self._listed():
                raise
        self.loaded.remove(loaded)

    def close(self) -> None:
        """Ends the server's processes. Requests in flight are lost: drain it first."""
        self._api.close()
        self._open.close()

    def _ask(self, path: str, body: dict[str, Any], otherwise: str) -> None:
        try:
            response = self._api.request("POST", path, body)
        except urllib3.exceptions.HTTPError as error:
            raise ServeError(f"{otherwise}: the server does not answer ({type(error).__name__}; log: {self.log})") from error
        if response.status != 200:
            raise ServeError(f"{otherwise}: {_reason(response.data)} (log: {self.log})")

    def _listed(self) -> dict[str, str]:
        """The directory of each model of the server, by its name."""
        try:
            listed = json.loads(self._api.request("GET", "/v1/models").data)["data"]
            return {str(each["id"]): str(each.get("root")) for each in listed}
        except (urllib3.exceptions.HTTPError, ValueError, KeyError, TypeError, AttributeError):
            return {}


def _reason(content: bytes) -> str:
    """What vLLM says of an adapter that it refuses; such a message is about files only."""
    try:
        said = json.loads(content)
        return str(said.get("error", said).get("message", "it gave no reason")).splitlines()[0][:LONGEST_REASON]
    except (ValueError, AttributeError, IndexError):
        return "it gave no reason"
