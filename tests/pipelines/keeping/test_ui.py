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

from pipelines.keeping.supervisor import QUERY

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
    request = urllib.request.Request(
        f"{address}/graphql", data=json.dumps({"query": query}).encode(), headers={"content-type": "application/json"}
    )
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
