"""Which lake and which recipes `millrace ui` shows. No server is started here; test_ui.py does that."""

import os

import pytest
import yaml
from rich.console import Console

from pipelines.graph.recipe_graph import definitions
from pipelines.keeping.daemon_lock import DaemonLock
from pipelines.keeping.dagster_servers import UiError, code_locations, serve, ui_lake
from pipelines.running.instance import dagster_home
from pipelines.storage.lake_recipes import remember, remembered
from resources.lake.lake import LakeError, LakeLayout

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
    assert remembered(lake) == [folder / "first.yaml", folder / "second.yaml"]  # by workload: club, shop
    (lake.root / "recipes" / "junk.json").write_text("{")
    assert len(remembered(lake)) == 2


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
