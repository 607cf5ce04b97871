"""The Dagster UI on a finished lake: loaded through workspace.yaml by a real webserver, asked by GraphQL, and seen."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from pipelines.graph.recipe_graph import definitions
from pipelines.keeping.daemon_lock import DaemonLock
from pipelines.keeping.dagster_servers import UiError, code_locations, serve, ui_lake
from pipelines.keeping.supervisor import QUERY
from pipelines.running.instance import dagster_home
from pipelines.storage.locations import remember, remembered_recipes
from resources.lake.lake import LakeError, LakeLayout

pytestmark = pytest.mark.xdist_group("ui")

PROJECT = Path(__file__).resolve().parents[3]
PICTURES = PROJECT / "tests" / "artifacts"
CHROMIUM_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
]  # fmt: skip
READY_SECONDS = 120


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def webserver(toy):
    """`millrace ui` as a person starts it; stopped by its pid."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", "ui", str(toy.recipe), "--lake", str(toy.lake), "--port", str(port)],
        cwd=PROJECT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    wait_until_ready(server, address)
    yield address
    server.send_signal(signal.SIGINT)
    assert server.wait(timeout=60) == 0


def wait_until_ready(server: subprocess.Popen, address: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{address}/server_info", timeout=5).read()
            return
        except OSError:
            assert server.poll() is None, "the webserver ended before it was ready"
            time.sleep(0.5)
    pytest.fail(f"the UI was not ready after {READY_SECONDS} s")


def ask(address: str, query: str) -> dict:
    data = json.dumps({"query": query}).encode()
    request = urllib.request.Request(f"{address}/graphql", data=data, headers={"content-type": "application/json"})
    answer = json.loads(urllib.request.urlopen(request, timeout=60).read())
    assert "errors" not in answer, answer
    return answer["data"]


@pytest.mark.slow
def test_the_code_location_is_loaded_and_everything_shows_as_materialized(webserver, toy):
    entries = ask(webserver, QUERY)
    [entry] = entries["workspaceOrError"]["locationEntries"]
    assert (entry["name"], entry["loadStatus"]) == ("toy", "LOADED")
    assert entry["locationOrLoadError"]["__typename"] == "RepositoryLocation", entry
    nodes = ask(
        webserver, "{ assetNodes { assetKey { path } description isMaterializable assetMaterializations(limit: 1) { runId } } }"
    )["assetNodes"]
    waiting = {node["assetKey"]["path"][-1] for node in nodes if node["isMaterializable"] and not node["assetMaterializations"]}
    assert waiting == {"endpoint"}  # it waits for a person
    assert all(node["description"] for node in nodes)


@pytest.mark.slow
def test_jobs_schedules_and_sensor_are_there_and_runs_are_in_the_history(webserver, toy):
    found = ask(
        webserver,
        "{ repositoriesOrError { ... on RepositoryConnection { nodes { jobs { name } "
        "schedules { name } sensors { name } } } } "
        "runsOrError { ... on Runs { results { jobName status } } } }",
    )
    [repository] = found["repositoriesOrError"]["nodes"]
    assert {"logs", "train"} <= {job["name"] for job in repository["jobs"]}
    assert {schedule["name"] for schedule in repository["schedules"]} == {"daily_logs", "retraining"}
    assert "new_logs" in {sensor["name"] for sensor in repository["sensors"]}
    finished = {run["jobName"] for run in found["runsOrError"]["results"] if run["status"] == "SUCCESS"}
    assert {"logs", "train"} <= finished


@pytest.mark.slow
def test_the_projects_own_workspace_file_loads(tmp_path):
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "dagster_webserver", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)],
        cwd=PROJECT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "DAGSTER_HOME": str(tmp_path), "MILLRACE_LAKE": str(tmp_path / "lake")},
    )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until_ready(server, address)
        [entry] = ask(address, QUERY)["workspaceOrError"]["locationEntries"]
        assert (entry["name"], entry["loadStatus"]) == ("demo", "LOADED")
        assert entry["locationOrLoadError"]["__typename"] == "RepositoryLocation", entry
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=60)


def chromium() -> str:
    """Chromium's path; installed from the system's packages where that is possible, else the test is skipped."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    if shutil.which("apt-get") and os.geteuid() == 0:
        for words in (["update", "-qq"], ["install", "-y", "-qq", "chromium"]):
            subprocess.run(["apt-get", *words], capture_output=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
        if path := shutil.which("chromium"):
            return path
    pytest.skip("no Chromium here and no way to install it: the UI was not looked at")


@pytest.mark.slow
@pytest.mark.thorough
def test_the_graph_is_drawn_in_a_browser(webserver, toy, tmp_path):
    PICTURES.mkdir(parents=True, exist_ok=True)
    picture = PICTURES / "asset-graph.png"
    picture.unlink(missing_ok=True)
    page = f"{webserver}/locations/toy/asset-groups/models/lineage"
    flags = [*CHROMIUM_FLAGS, f"--user-data-dir={tmp_path}", "--window-size=1280,900", "--virtual-time-budget=25000"]
    subprocess.run([chromium(), *flags, f"--screenshot={picture}", page], capture_output=True, timeout=180, check=True)
    dom = subprocess.run([chromium(), *flags, "--dump-dom", page], capture_output=True, timeout=180, text=True, check=True)
    assert "sft_model" in dom.stdout
    assert picture.stat().st_size > 20_000


RECIPE = "workload: shop\nbase_model: tiny\nsources:\n  gateway: {uri: logs}\nfirst_day: 2026-06-01\nlast_day: 2026-06-02\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("MILLRACE_LAKE", "MILLRACE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_an_empty_folder_gets_one_sentence_and_stays_empty(folder):
    with pytest.raises(LakeError, match="give a recipe, or --lake DIR"):
        ui_lake([], None)
    with pytest.raises(LakeError, match="no lake at"):
        ui_lake([], "other")
    assert not list(folder.iterdir())


@pytest.mark.parametrize("place", ["lake", "demo/lake", "demo/quick/lake"])
def test_a_lake_in_the_current_folder_is_found(folder, place):
    made = LakeLayout.open(folder / place)
    assert ui_lake([], None) == made


def test_a_folder_named_lake_that_is_no_lake_is_not_turned_into_one(folder):
    (folder / "lake").mkdir()
    with pytest.raises(LakeError, match="no lake is named"):
        ui_lake([], None)
    assert not list((folder / "lake").iterdir())


def test_a_named_lake_goes_before_the_current_folders(folder, monkeypatch):
    LakeLayout.open(folder / "lake")
    other = LakeLayout.open(folder / "other")
    assert ui_lake([], "other") == other
    monkeypatch.setenv("MILLRACE_LAKE", str(other.root))
    assert ui_lake([], None) == other


def test_the_recipes_last_run_on_a_lake_are_remembered(folder):
    lake = LakeLayout.open(folder / "lake")
    for name in ("first", "second"):
        (folder / f"{name}.yaml").write_text(RECIPE)
    remember(lake, "shop", folder / "first.yaml")
    remember(lake, "shop", folder / "second.yaml")
    remember(lake, "club", folder / "first.yaml")
    assert remembered_recipes(lake) == [folder / "first.yaml", folder / "second.yaml"]  # by workload: club, shop
    (lake.root / "recipes" / "junk.json").write_text("{")
    assert len(remembered_recipes(lake)) == 2


def test_a_lake_without_a_recipe_asks_for_one(folder):
    lake = LakeLayout.open(folder / "lake")
    with pytest.raises(UiError, match="names no recipe to show: millrace ui RECIPE --lake"):
        serve([], lake.root, "127.0.0.1", 3000, Console(quiet=True))
    remember(lake, "shop", folder / "gone.yaml")
    with pytest.raises(UiError, match=r"gone\.yaml, which was run on it last, is gone"):
        serve([], lake.root, "127.0.0.1", 3000, Console(quiet=True))


def test_a_port_in_use_is_said_before_anything_is_started(folder):
    import socket

    (folder / "shop.yaml").write_text(RECIPE)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UiError, match="cannot be listened on"):
            serve([folder / "shop.yaml"], None, "127.0.0.1", taken.getsockname()[1], Console(quiet=True))


def test_two_recipes_of_one_name_are_told_apart_or_refused(folder):
    (folder / "a").mkdir()
    with pytest.raises(UiError, match="the same name in the UI"):
        code_locations([folder / "shop.yaml", folder / "a" / "shop.yaml"])
    assert len(code_locations([folder / "shop.yaml", folder / "a" / ".." / "shop.yaml"])) == 1


def test_a_recipe_named_like_a_module_of_the_graph_is_shown_as_itself(folder):
    import pipelines.definitions

    (folder / "logs.yaml").write_text(RECIPE)
    [place] = yaml.safe_load(yaml.safe_dump(code_locations([folder / "logs.yaml"])))
    loaded = getattr(pipelines.definitions, place["python_module"]["attribute"])
    assert type(loaded) is type(definitions(folder / "logs.yaml"))


def test_a_relative_millrace_home_is_where_the_user_is(folder, monkeypatch):
    monkeypatch.setenv("MILLRACE_HOME", "home")
    assert dagster_home(LakeLayout.open(folder / "lake")) == folder / "home"


def test_one_daemon_serves_a_lake(folder):
    with DaemonLock(folder) as first, DaemonLock(folder) as second:
        assert first.why_not() == ""
        assert second.why_not() == f"another process of this machine runs the daemon (process {os.getpid()})"
    with DaemonLock(folder) as again:
        assert again.why_not() == ""


def test_two_recipes_of_one_workload_are_refused(folder):
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(RECIPE)
    with pytest.raises(UiError, match="recipes of the same workload"):
        serve([folder / "one.yaml", folder / "two.yaml"], None, "127.0.0.1", 3000, Console(quiet=True))
