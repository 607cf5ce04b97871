"""Recipes that the webserver could not load are named with the reason; a webserver that loads still, or is away, says
nothing."""

import json
import socket
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pipelines.keeping.keeper import ServerState, UpState, write_state
from pipelines.keeping.supervisor import location_errors
from resources.lake.lake import LakeLayout
from resources.launching.processes import this_process
from tests.loopback import loopback

FAILED = {
    "__typename": "PythonError",
    "message": "\nDagsterInvalidDefinitionError: Conflicting definitions of 'x'\n\nStack Trace:\n  File",
}


def entry(name, found, status="LOADED"):
    return {"name": name, "loadStatus": status, "locationOrLoadError": found}


def workspace(*entries):
    return json.dumps({"data": {"workspaceOrError": {"locationEntries": list(entries)}}})


@contextmanager
def serving(text):
    with loopback(lambda body, number: (200, text)) as (url, _):
        yield url


GOOD, BAD = entry("shop", {"__typename": "RepositoryLocation"}), entry("club", FAILED)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (workspace(GOOD), {}),
        (workspace(GOOD, BAD), {"club": "DagsterInvalidDefinitionError: Conflicting definitions of 'x'"}),
        (workspace(GOOD, entry("club", None, "LOADING")), None),
        ("no json", None),
        ("[]", None),
    ],
)
def test_what_is_not_loaded_is_named(answer, found):
    with serving(answer) as url:
        assert location_errors(url) == found


def test_a_webserver_that_is_away_says_nothing():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert location_errors(f"http://127.0.0.1:{free.getsockname()[1]}") is None


def test_check_ends_with_1_where_a_recipe_is_not_loaded(cli, tmp_path):
    lake, since = LakeLayout.open(tmp_path / "lake"), "2026-06-01T00:00:00+00:00"
    with serving(workspace(GOOD, BAD)) as url:
        servers = (ServerState("webserver", this_process(), since, 0, "", "w"),)
        state = UpState(this_process(), socket.gethostname(), since, lake.place, servers, url)
        write_state(lake.dagster_home, state)
        said = cli("up", "--check", "--lake", lake.root, check=1)
        expected = "the recipe of club cannot be loaded, so it has no sensors and no jobs: DagsterInvalid"
        assert expected in " ".join(said.stderr.split())
        found = json.loads(cli("up", "--check", "--lake", lake.root, "--format", "json", check=1).stdout)
        assert found["running"]
        assert found["not_loaded"] == {"club": "DagsterInvalidDefinitionError: Conflicting definitions of 'x'"}
    write_state(lake.dagster_home, replace(state, ui=""))
    cli("up", "--check", "--lake", lake.root, check=0)
