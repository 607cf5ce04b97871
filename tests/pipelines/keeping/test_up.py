"""`millrace up`: what it refuses before it starts anything, what --check says, and the real thing: kills, a second one, the
end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace

import psutil
import pytest

from benchmarks.postgres_server import NoPostgres
from benchmarks.up_faults import faults
from pipelines.keeping.keeper import ServerState, UpState, folder_of, read_state, write_state
from pipelines.keeping.supervisor import untold_channels
from pipelines.keeping.up_servers import UpSettings, WorkloadServer, serving_of, up_servers
from resources.lake.lake import LakeLayout
from resources.launching.processes import this_process
from tests.command import PROJECT
from tests.reports import until

RECIPE = "workload: shop\nbase_model: tiny\nsources:\n  gateway: {uri: logs}\nfirst_day: 2026-06-01\nlast_day: 2026-06-02\n"
STARTS_S = 120


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    for name in ("MILLRACE_LAKE", "MILLRACE_HOME", "MILLRACE_POSTGRES"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "shop.yaml"
    path.write_text(RECIPE)
    return path


@pytest.mark.parametrize(("words", "said"), [
    (["--serve", "shop:many"], "--serve 'shop:many': give a workload, or WORKLOAD:PORT"),
    (["--serve", "shop:70000"], "--serve 'shop:70000': give a workload, or WORKLOAD:PORT"),
    (["--serve", "shop", "--serve", "shop:9000"], "--serve names a workload twice"),
    (["--capture", "captured"], "--capture needs something to capture: --serve WORKLOAD, or --to"),
    (["--to", "http://127.0.0.1:9"], "--to names a server whose traffic is captured: give --capture DIR, too"),
    (["--to", "127.0.0.1", "--capture", "captured"], "--to '127.0.0.1' is no address of a server"),
    (["--serve", "shop", "--keys", "keys.yaml"], "--keys says what of captured traffic is kept: give --capture, too"),
    (["--serve", "shop", "--capture", "c", "--keys", "nothing.yaml"], "nothing.yaml"),
    (["--serve-option=--wait=60"], "--serve-option is for the server of --serve WORKLOAD: name a workload"),
    (["--to", "http://127.0.0.1:8080", "--capture", "c"], "is the address that this command listens at"),
    (["--serve", "shop:3000"], "port 3000 is asked for twice (--port, --serve shop:PORT)"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused_in_one_sentence(cli, recipe, words, said):
    done = cli("up", recipe, *words, check=2)
    assert said in " ".join(done.stderr.split()) and done.stderr.count("millrace:") == 1
    assert not (recipe.parent / "lake").exists()


@pytest.mark.parametrize(("word", "said"), [
    ("--port=1", "another option sets it"),
    ("--wat=60", "did you mean --wait?"),
    ("--wait", "give the value in the same word: --wait="),
    ("--wait=long", "valid number"),
    ("--no-smoke=1", "it takes no value"),
    ("wait=60", "did you mean --wait?"),
    ("--max-model-len=3", "it has no such option; words for the inference server go into --argument"),
])  # fmt: skip
def test_an_option_that_cannot_be_passed_on_to_the_server_is_named(cli, recipe, word, said):
    done = cli("up", recipe, "--serve", "shop", f"--serve-option={word}", check=2)
    text = " ".join(re.sub(r"[│╭╰─╮╯]", " ", done.stderr).split())
    assert "--serve-option" in text and f"'{word}' cannot be passed on" in text and said in text
    assert not (recipe.parent / "lake").exists()


def test_a_workload_that_nobody_has_is_not_served(cli, recipe):
    done = cli("up", recipe, "--serve", "shpo", check=2)
    assert "--serve shpo: neither the recipes nor the lake" in " ".join(done.stderr.split()) and "there are shop" in done.stderr
    assert not (recipe.parent / "lake" / ".dagster").exists()


def test_a_channel_whose_variable_is_not_set_is_named(recipe, monkeypatch):
    recipe.write_text(RECIPE + "alerts:\n  webhook: {url_env: HOOK}\n  slack: {url_env: SLACK}\n")
    monkeypatch.setenv("SLACK", "http://127.0.0.1:9")
    monkeypatch.delenv("HOOK", raising=False)
    (recipe.parent / "broken.yaml").write_text("workload: [")
    expected = ["shop.yaml: nothing can be told through alerts.webhook: the environment variable HOOK is not set here"]
    assert list(untold_channels([recipe, recipe.parent / "broken.yaml"])) == expected


def test_logs_go_into_a_folder(cli, recipe):
    expected = f"--logs {recipe}: a file is there; name a folder"
    assert expected in " ".join(cli("up", recipe, "--logs", recipe, check=2).stderr.split())


def test_a_broken_recipe_and_a_missing_one_start_nothing(cli, recipe, tmp_path):
    (tmp_path / "broken.yaml").write_text(RECIPE + "speculater: {}\n")
    assert "speculater" in cli("up", recipe, tmp_path / "broken.yaml", check=2).stderr
    assert "nothing.yaml" in cli("up", tmp_path / "nothing.yaml", check=2).stderr
    assert not (tmp_path / "lake").exists()


def test_a_port_that_is_taken_and_a_ui_that_is_not_installed_are_said(cli, recipe, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "cannot be listened on" in cli("up", recipe, "--port", str(taken.getsockname()[1]), check=2).stderr
    monkeypatch.setattr("pipelines.keeping.dagster_servers.importlib.util.find_spec", lambda name: None)
    assert "pip install 'millrace[ui]'" in cli("up", recipe, check=2).stderr


def test_a_lake_that_cannot_be_written_is_said(cli, recipe):
    assert "no lake can be made" in cli("up", recipe, "--lake", "/proc/lake", check=2).stderr


def test_check_says_what_runs(cli, recipe, tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    assert "was never started" in cli("up", "--check", "--lake", lake.root, check=1).stderr
    since = "2026-06-01T00:00:00+00:00"
    daemon = ServerState("daemon", this_process(), since, 2, "", "daemon.log")
    state = UpState(this_process(), socket.gethostname(), since, lake.place, (daemon,))
    write_state(lake.dagster_home, state)
    assert read_state(lake.dagster_home) == state
    shown = cli("up", "--check", "--lake", lake.root, check=0).stdout
    assert "daemon" in shown and str(os.getpid()) in shown
    ended = ServerState("webserver", "", "2026-06-01T00:00:00+00:00", 7, "it ended with exit code 3", "w.log")
    write_state(lake.dagster_home, replace(state, servers=(*state.servers, ended)))
    assert "it ended with exit code 3" in cli("up", recipe, "--check", check=1).stdout
    found = json.loads(cli("up", "--check", "--lake", lake.root, "--format", "json", check=1).stdout)
    assert found["running"] and [server["running"] for server in found["servers"]] == [True, False]
    write_state(lake.dagster_home, replace(state, process="999999@5.00"))
    assert "does not run" in cli("up", "--check", "--lake", lake.root, check=1).stderr
    (folder_of(lake.dagster_home) / "state.json").write_text("{")
    assert read_state(lake.dagster_home) is None


def test_servers_are_named_once_and_captured_traffic_of_several_is_kept_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lake = LakeLayout.open(tmp_path / "lake")
    settings = UpSettings(
        serve=serving_of(["shop", "club:8100"]),
        capture="captured",
        to="http://127.0.0.1:9/v1",
        program="vllm",
        arguments=("--max-model-len", "64"),
        keys=tmp_path / "keys.yaml",
        serve_options=("--wait=60", "--no-smoke"),
    )
    assert settings.serve == (WorkloadServer("shop", 8000), WorkloadServer("club", 8100))
    found = {
        server.name: list(server.command)
        for server in up_servers(settings, lake, lake.dagster_home, tmp_path, tmp_path / "w.yaml", 3, (4,), lambda: "")
    }
    assert list(found) == ["serve-shop", "serve-club", "capture", "daemon", "webserver"]
    stores = {name: found[name][found[name].index("--capture") + 1] for name in ("serve-shop", "serve-club")}
    assert stores == {"serve-shop": str(tmp_path / "captured/shop"), "serve-club": str(tmp_path / "captured/club")}
    assert str(tmp_path / "captured/captured") in found["capture"] and "http://127.0.0.1:9/v1" in found["capture"]
    assert found["serve-shop"][-5:] == ["--wait=60", "--no-smoke", "--", "--max-model-len", "64"]
    assert all(found[name][found[name].index("--keys") + 1] == str(tmp_path / "keys.yaml") for name in (*stores, "capture"))
    assert "--watch" in found["serve-shop"]


class Up:
    """`millrace up` as a person starts it."""

    def __init__(self, recipe, *words):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.home = recipe.parent / "lake" / ".dagster"
        self.output = (recipe.parent / "up.txt").open("a+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.cli", "up", str(recipe), "--port", str(self.port), *words],
            cwd=PROJECT,
            stdout=self.output,
            stderr=self.output,
            start_new_session=True,
        )

    def said(self):
        self.output.seek(0)
        return self.output.read()

    def pid(self, name):
        state = read_state(self.home)
        return state.pid_of(name) if state is not None and state.process.startswith(f"{self.process.pid}@") else None

    def wait_for_ui(self):
        def answers():
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/server_info", timeout=2).status == 200
            except OSError:
                assert self.process.poll() is None, self.said()
                return False

        until(answers, STARTS_S)


def of_the_lake(folder):
    """Processes that have a file of this folder on their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_killed_servers_come_back_a_second_one_is_refused_and_nothing_is_left(recipe, tmp_path, cli):
    first = Up(recipe)
    try:
        first.wait_for_ui()
        daemon = until(lambda: first.pid("daemon"), STARTS_S)
        os.kill(daemon, signal.SIGKILL)
        assert until(lambda: (pid := first.pid("daemon")) not in (None, daemon) and pid, STARTS_S)
        assert "daemon ended by SIGKILL and is started again" in first.said()
        assert f"already runs on {tmp_path / 'lake'} (process {first.process.pid}" in cli("up", recipe, check=2).stderr
        first.process.kill()
        first.process.wait()
        second = Up(recipe)  # waits for what the killed one left
        try:
            second.wait_for_ui()
            assert until(lambda: second.pid("daemon"), STARTS_S) != daemon
        finally:
            second.process.send_signal(signal.SIGTERM)
            assert second.process.wait(timeout=120) == 0
        assert second.said().rstrip().endswith("everything has ended")
    finally:
        first.process.kill()
    until(lambda: not of_the_lake(tmp_path), STARTS_S)


@pytest.mark.thorough
@pytest.mark.parametrize("with_database", [False, True])
def test_kills_lose_nothing(with_database, monkeypatch):
    for name in ("MILLRACE_HOME", "MILLRACE_LAKE", "MILLRACE_POSTGRES", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    try:
        found = faults(kills=6 if with_database else 5, days=2, with_database=with_database, between_s=(5.0, 20.0))
    except NoPostgres as error:
        pytest.skip(str(error))
    assert {name: found[name] for name in ("lost", "twice", "uncleaned", "stuck", "left")} == dict.fromkeys(
        ("lost", "twice", "uncleaned", "stuck", "left"), 0
    ), found
    assert found["cursor"] and found["kills"] >= 4
