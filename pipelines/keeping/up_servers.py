"""The servers of `millrace up`, with their command lines and ports; checked before any is started."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipelines.contract import RecipeProblemsError, load_recipe
from pipelines.keeping.dagster_servers import UiError, daemon_command, require_port, server_environment, webserver_command
from pipelines.keeping.keeper import Server
from pipelines.keeping.managed_process import end_launched_runs
from resources.endpoints import workloads_with_endpoints
from resources.gateway import read_rules, require_another_server
from resources.lake import LakeLayout
from resources.launching import python_module
from stores.mirror.location import is_bucket

DRAIN_S = 120.0
"""Seconds that requests in flight have when `millrace up` is stopped."""
FIRST_SERVE_PORT = 8000
SET_BY_UP = ("--watch", "--lake", "--host", "--port", "--drain", "--program", "--capture", "--keys", "--journal")
"""Options of `millrace serve` that follow from those of `up`. A journal is of one process, and --serve may name several."""


@dataclass(frozen=True)
class WorkloadServer:
    """A workload that is served, and its port."""

    workload: str
    port: int


@dataclass(frozen=True)
class UpSettings:
    recipes: tuple[Path, ...] = ()
    """Recipes to show and run."""
    lake: str | None = None
    host: str = "127.0.0.1"
    port: int = 3000
    serve: tuple[WorkloadServer, ...] = ()
    """Workloads to serve."""
    capture: str = ""
    """Directory or s3:// prefix of captured traffic; "" for none."""
    to: str = ""
    """A server that is not millrace's, whose traffic is captured at capture_port; "" for none."""
    capture_port: int = 8080
    program: str = ""
    arguments: tuple[str, ...] = field(default=())
    """`program`, `arguments`: of the inference server."""
    keys: Path | None = None
    """File of sampling rates and zero retention of captured traffic."""
    serve_options: tuple[str, ...] = ()
    """Further ones of `millrace serve`."""
    logs: Path | None = None
    """Folder of the logs; None: in DAGSTER_HOME."""


def serving_of(words: Sequence[str]) -> tuple[WorkloadServer, ...]:
    """--serve WORKLOAD or WORKLOAD:PORT, each. Raises UiError."""
    servings: list[WorkloadServer] = []
    for place, word in enumerate(words):
        workload, _, port = word.partition(":")
        if not workload or (port and not (port.isdigit() and 0 < int(port) < 65536)):
            raise UiError(f"--serve {word!r}: give a workload, or WORKLOAD:PORT such as math-tutor:8000")
        servings.append(WorkloadServer(workload, int(port) if port else FIRST_SERVE_PORT + place))
    if len({serving.workload for serving in servings}) != len(servings):
        raise UiError("--serve names a workload twice")
    return tuple(servings)


def require_choice(settings: UpSettings) -> dict[str, int]:
    """The ports, by the options that choose them. Raises UiError, or CaptureError for an address, if the settings do not fit
    together."""
    if settings.to and not settings.capture:
        raise UiError("--to names a server whose traffic is captured: give --capture DIR, too")
    if settings.capture and not (settings.to or settings.serve):
        raise UiError("--capture needs something to capture: --serve WORKLOAD, or --to with the address of a server")
    if settings.to:
        require_another_server(settings.to, settings.host, settings.capture_port)
    if settings.keys and not settings.capture:
        raise UiError("--keys says what of captured traffic is kept: give --capture, too")
    read_rules(settings.keys)
    if settings.serve_options and not settings.serve:
        raise UiError("--serve-option is for the server of --serve WORKLOAD: name a workload")
    ports = {"--port": settings.port, **{f"--serve {serving.workload}:PORT": serving.port for serving in settings.serve}}
    if settings.to:
        ports["--capture-port"] = settings.capture_port
    for port in ports.values():
        if list(ports.values()).count(port) > 1:
            raise UiError(f"port {port} is asked for twice ({', '.join(name for name in ports if ports[name] == port)})")
    return ports


def require_known_workloads(settings: UpSettings, recipes: Sequence[Path], lake: LakeLayout | None) -> None:
    """Raises UiError for --serve of a workload that neither a recipe nor the lake has: no release of it can come. lake: None
    where there is none yet."""
    known = set(workloads_with_endpoints(lake)) if lake is not None else set()
    for path in recipes if settings.serve else ():
        with suppress(RecipeProblemsError):  # a recipe that stopped loading breaks only its own code location
            known.add(load_recipe(path).workload)
    place = f" {lake.place}" if lake is not None else ""
    for serving in settings.serve:
        if serving.workload not in known:
            raise UiError(
                f"--serve {serving.workload}: neither the recipes nor the lake{place} have this workload; there are "
                f"{', '.join(sorted(known)) or 'none yet'}"
            )


def require_free_ports(settings: UpSettings) -> None:
    """Raises UiError for a port that is taken."""
    for option, port in require_choice(settings).items():
        require_port(settings.host, port, option)


def up_servers(
    settings: UpSettings,
    lake: LakeLayout,
    home: Path,
    logs: Path,
    workspace: Path,
    up_lock: int,
    daemon_locks: Sequence[int],
    why_no_daemon: Callable[[], str],
) -> list[Server]:
    """up_lock, daemon_locks: descriptors of locks that end with the servers. why_no_daemon: says why the daemon may not run
    now, "" if it may."""
    environment = {**server_environment(home, lake), "PYTHONUNBUFFERED": "1"}

    def server(name: str, command: list[str], stop_s: float = 20.0) -> Server:
        return Server(name, command, environment, logs / f"{name}.log", stop_s, (up_lock,))

    servers = [
        server(f"serve-{serving.workload}", _serve_command(settings, serving, lake), stop_s=DRAIN_S + 10)
        for serving in settings.serve
    ]
    if settings.to:
        words = ["capture", _store_of(settings, "captured"), "--to", settings.to, *_listening(settings, settings.capture_port)]
        command = python_module("pipelines.cli", *words, *_keys_of(settings))
        servers.append(server("capture", command, stop_s=DRAIN_S + 40))
    servers.append(
        replace(
            server("daemon", daemon_command(workspace)),
            held=(up_lock, *daemon_locks),
            ends_first=end_launched_runs,
            may_run=why_no_daemon,
        )
    )
    servers.append(server("webserver", webserver_command(workspace, settings.host, settings.port)))
    return servers


def _serve_command(settings: UpSettings, serving: WorkloadServer, lake: LakeLayout) -> list[str]:
    words = ["serve", serving.workload, "--watch", "--lake", lake.place, *_listening(settings, serving.port)]
    if settings.program:
        words += ["--program", settings.program]
    if settings.capture:
        words += ["--capture", _store_of(settings, serving.workload), *_keys_of(settings)]
    words += settings.serve_options
    return python_module("pipelines.cli", *words, *(["--", *settings.arguments] if settings.arguments else []))


def _store_of(settings: UpSettings, name: str) -> str:
    """Where captured traffic is written: each of several servers has a folder, since one process uses a journal."""
    store = settings.capture if is_bucket(settings.capture) else str(Path(settings.capture).expanduser().absolute())
    alone = len(settings.serve) + bool(settings.to) == 1
    return store if alone else f"{store.rstrip('/')}/{name}"


def _listening(settings: UpSettings, port: int) -> list[str]:
    return ["--host", settings.host, "--port", str(port), "--drain", f"{DRAIN_S:g}"]


def _keys_of(settings: UpSettings) -> list[str]:
    return ["--keys", str(settings.keys.expanduser().absolute())] if settings.keys else []
