"""`millrace up`: everything that a lake needs on one machine, kept running until SIGTERM, SIGINT or SIGHUP. If this process is
killed, its servers end with it; one `millrace up` runs on a lake."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import urllib3

from model_ops.files import try_lock
from pipelines.contract import RecipeProblemsError, load_recipe
from pipelines.keeping.daemon_lock import DaemonLock
from pipelines.keeping.dagster_servers import (
    UiError,
    require_recipes,
    require_ui,
    shown_recipes,
    ui_lake,
    writable_home,
    write_workspace,
)
from pipelines.keeping.keeper import Keeper, Server, UpState, folder_of, now, read_state, write_state
from pipelines.keeping.managed_process import RotatedLog
from pipelines.keeping.up_servers import UpSettings, require_choice, require_free_ports, require_known_workloads, up_servers
from pipelines.storage import require_writable
from resources.gateway import own_host
from resources.lake import LakeLayout
from resources.launching import this_process

LOCK = ".lock"
WAITS_S = 60.0
"""Seconds to wait for the servers of a `millrace up` that was killed: they end by themselves."""
LOADS_WITHIN_S, LOOKS_EVERY_S = 300.0, 2.0
"""For the first look at what the webserver has loaded."""
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def up(settings: UpSettings, say: Callable[[str], None]) -> int:
    """Returns 0 when it was asked to stop and everything has ended. Raises UiError, RecipeError, LakeError, StorageError,
    CaptureError or PostgresError before anything is started."""
    require_ui()
    require_recipes(settings.recipes)
    require_choice(settings)
    lake = ui_lake(settings.recipes, settings.lake)
    recipes = shown_recipes(settings.recipes, lake, "up")
    require_known_workloads(settings, recipes, lake)
    home = writable_home(lake)
    logs = (settings.logs or folder_of(home)).expanduser().absolute()
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UiError(f"--logs {settings.logs}: a file is there; name a folder") from error
    require_writable(logs)
    folder_of(home).mkdir(exist_ok=True)
    with (folder_of(home) / LOCK).open("a") as lock, DaemonLock(home) as daemon_lock:
        _only_one(lock, lake, home, say)
        require_free_ports(settings)
        for sentence in untold_channels(recipes):
            say(sentence)
        workspace = write_workspace(folder_of(home), recipes)
        servers = up_servers(settings, lake, home, logs, workspace, lock.fileno(), daemon_lock.files, daemon_lock.why_not)
        _keep(servers, _Reporter(say, RotatedLog(logs / "up.log")), lake, home, settings)
    return 0


def untold_channels(recipes: Sequence[Path]) -> Iterator[str]:
    """A sentence for each channel of alerts that nothing can be told through. A recipe that cannot be read is left out."""
    for path in recipes:
        with suppress(RecipeProblemsError):
            alerts = load_recipe(path).alerts
            for channel, variable in (alerts.variables if alerts else {}).items():
                if not os.environ.get(variable):
                    yield (
                        f"{path.name}: nothing can be told through alerts.{channel}: the environment variable {variable} is "
                        "not set here"
                    )


class _Reporter:
    def __init__(self, say: Callable[[str], None], log: RotatedLog):
        self._say, self._log = say, log

    def __call__(self, sentence: str) -> None:
        self._log.write(f"{now()} {sentence}")
        with suppress(OSError):  # the terminal, or the program that read the output, may be gone
            self._say(f"{datetime.now(UTC):%H:%M:%S} {sentence}")


def _keep(servers: list[Server], say: _Reporter, lake: LakeLayout, home: Path, settings: UpSettings) -> None:
    ui = f"http://{own_host(settings.host)}:{settings.port}"
    began = UpState(this_process(), socket.gethostname(), now(), lake.place, ui=ui)

    def changed() -> None:
        with suppress(OSError):  # servers go on where the disk is full
            write_state(home, replace(began, servers=keeper.states()))

    keeper = Keeper(servers, say, changed)
    say(
        f"keeps {', '.join(server.name for server in servers)} running for the lake {lake.place}; the UI is on "
        f"http://{settings.host}:{settings.port}; logs are in {servers[0].log.parent}; Ctrl-C stops it"
    )
    with _stop_events() as (stop, hurry):
        threading.Thread(target=_tell_location_errors, args=(began.ui, say, stop), name="locations", daemon=True).start()
        keeper.run(stop, hurry)
    say("everything has ended")


def _tell_location_errors(url: str, say: _Reporter, stop: threading.Event) -> None:
    until = time.monotonic() + LOADS_WITHIN_S
    while not stop.wait(LOOKS_EVERY_S) and time.monotonic() < until:
        if (errors := location_errors(url)) is not None:
            for name, error in errors.items():
                say(f"the recipe of {name} cannot be loaded, so it has no sensors and no jobs: {error}")
            return


@contextmanager
def _stop_events() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Two events: set by the first and by a second signal to stop."""
    stop, hurry = threading.Event(), threading.Event()

    def handle(number: int, frame: object) -> None:
        (hurry if stop.is_set() else stop).set()

    before = {number: signal.signal(number, handle) for number in STOPS}
    try:
        yield stop, hurry
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _only_one(lock: IO[str], lake: LakeLayout, home: Path, say: Callable[[str], None]) -> None:
    """Takes the lock. Raises UiError if another `millrace up` runs on this lake."""
    until, has_said = time.monotonic() + WAITS_S, False
    while not try_lock(lock):
        state = read_state(home)
        if state is not None and state.is_running:
            raise UiError(
                f"millrace up already runs on {lake.place} (process {state.process.partition('@')[0]}, since "
                f"{state.since}): millrace up --check shows it, SIGTERM stops it"
            )
        if time.monotonic() > until:
            raise UiError(f"another millrace up on {lake.place} has just been started, or its servers do not end: try again")
        if not has_said:
            say("waits for the servers of a millrace up that was killed: they are ending")
            has_said = True
        time.sleep(0.5)


QUERY = (
    "{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus "
    "locationOrLoadError { __typename ... on PythonError { message } } } } } }"
)
TIMEOUT_S = 5.0
MOST_CHARACTERS = 300


def location_errors(url: str) -> dict[str, str] | None:
    """The first line of each code location's error; {} if all are loaded. None while the webserver does not answer or loads."""
    with suppress(urllib3.exceptions.HTTPError, ValueError, KeyError, TypeError):
        answer = urllib3.request("POST", f"{url}/graphql", json={"query": QUERY}, timeout=TIMEOUT_S, retries=False)
        entries = json.loads(answer.data)["data"]["workspaceOrError"]["locationEntries"]
        if all(entry["loadStatus"] == "LOADED" for entry in entries):
            return {
                entry["name"]: _first_line(error["message"])
                for entry in entries
                if (error := entry["locationOrLoadError"])["__typename"] == "PythonError"
            }
    return None


def _first_line(message: str) -> str:
    """A message has a traceback's lines after its sentence."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0][:MOST_CHARACTERS] if lines else "no reason is given"
