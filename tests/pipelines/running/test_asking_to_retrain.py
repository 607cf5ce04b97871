"""`millrace retrain`: what the person is told, what is kept, and wrong input in one sentence."""

import io
import json
import shutil
from datetime import UTC, datetime

import pytest
from rich.console import Console
from typer.testing import CliRunner

from model_ops.jobs import Misuse, UserError
from pipelines.cli import app
from pipelines.status.decisions_text import print_requests
from pipelines.storage.locations import remember
from resources.deciding.decisions import Decisions
from resources.deciding.policy import decide
from resources.deciding.requests import Requests
from resources.lake.lake import LakeLayout
from resources.reporting.dashboard import write_dashboard
from tests.resources.deciding.examples import FACTS
from tests.resources.deciding.small_lake import trained_lake

RECIPE = {
    "workload": "shop",
    "base_model": "tiny",
    "sources": {"gateway": {"uri": "logs"}},
    "first_day": "2026-06-01",
    "automation": {"decide": {"enabled": True, "requests_per_day": 10_000_000}},
}
BECAUSE = ("--because", "the prices of June are wrong")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return trained_lake(tmp_path_factory.mktemp("asked"))


@pytest.fixture
def lake(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_USER", "ana")
    shutil.copytree(trained.root, tmp_path / "lake")
    return LakeLayout.open(tmp_path / "lake")


@pytest.fixture
def call(lake):
    def call(*words):
        result = CliRunner().invoke(app, ["retrain", *words, "--lake", str(lake.root)])
        assert isinstance(result.exception, (UserError, SystemExit, type(None))), result.exception
        return result

    return call


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "shop.yaml").write_text(json.dumps(RECIPE))
    return tmp_path / "shop.yaml"


def test_a_request_is_kept_told_and_listed_until_it_is_withdrawn(lake, call):
    said = call("shop", *BECAUSE, "--action", "drafter_new", "--despite", "quiet").output
    [request] = Requests(lake, "shop").all()
    assert (
        said
        == f"request {request.request_id} is kept: the sensor `decide` decides it at its next tick, if it is on and the daemon runs\n"
    )
    expected = ("ana", "MILLRACE_USER", "drafter_new", ("quiet",))
    assert (request.by, request.identity_from, request.action, request.despite) == expected
    assert "nothing was added" in call("shop", *BECAUSE, "--action", "drafter_new", "--despite", "quiet").output
    listed = CliRunner().invoke(app, ["decisions", "shop", "--lake", str(lake.root)]).output
    assert f"Not decided yet, request {request.request_id} of " in listed
    assert ": ana asked for a new drafter, despite the quiet hours: the prices of June are wrong." in listed
    assert "is withdrawn" in call("shop", "--withdraw", request.request_id).output
    assert "was decided already" in str(call("shop", "--withdraw", request.request_id).exception)
    assert [each.outcome for each in Decisions(lake, "shop").all()] == ["cancelled"]


def test_a_dry_run_shows_options_and_keeps_nothing(lake, call, recipe):
    remember(lake, "shop", recipe)
    said = call("shop", *BECAUSE, "--action", "drafter_continued", "--dry-run").output
    assert (
        "dry run, nothing is kept or started. The decision would be: a drafter continued from the previous one costs about"
        in said
    )
    assert "Ana asked for everything" not in said and "ana asked for a drafter continued" in said and "why not" in said
    assert Requests(lake, "shop").all() == [] == Decisions(lake, "shop").all()


def test_where_the_sensor_is_off_the_person_is_told(lake, call, recipe):
    recipe.write_text(json.dumps(RECIPE | {"automation": {}}))
    remember(lake, "shop", recipe)
    assert "it waits until the sensor `decide` is on: switch it on" in call("shop", *BECAUSE).output
    recipe.write_text(json.dumps(RECIPE | {"automation": {"decide": {"dry_run": True}}}))
    assert "only writes what it would do" in call("shop", "--because", "again").output
    recipe.write_text("workload: [")  # no recipe any more: the request is kept all the same
    assert "is kept" in call("shop", "--because", "once more").output


def test_wrong_input_is_one_sentence_and_keeps_nothing(lake, call, recipe, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps(RECIPE | {"workload": "other"}))
    for words, says in (
        (("shpo", *BECAUSE), "has no workload 'shpo'; did you mean shop?"),
        (("shop",), "the reason is empty"),
        (("shop", "--because", " \t "), "the reason is empty"),
        (("shop", "--because", "a\nb"), "--because holds control characters"),
        (("shop", *BECAUSE, "--action", "everything"), "action is 'everything', which does not exist"),
        (("shop", *BECAUSE, "--despite", "quite"), "did you mean quiet?"),
        (("shop", *BECAUSE, "--dry-run"), "does not know the recipe of shop"),
        (("shop", *BECAUSE, "--dry-run", "--recipe", str(other)), "is the recipe of other, not of shop"),
        (("shop", *BECAUSE, "--recipe", str(other)), "is the recipe of other, not of shop"),
        (("shop", "--withdraw", "123"), "shop has no request 123"),
        (("shop", "--withdraw", "123", "--dry-run"), "give one of them"),
    ):
        error = call(*words).exception
        assert isinstance(error, Misuse) and says in str(error) and "\n" not in str(error), words
    away = CliRunner().invoke(app, ["retrain", "shop", *BECAUSE, "--lake", str(tmp_path / "away")]).exception
    assert isinstance(away, Misuse) and "no lake at" in str(away)
    assert Requests(lake, "shop").all() == []


def test_a_persons_words_are_shown_as_they_are_and_never_as_markup(lake, call, tmp_path):
    call("shop", "--because", "<script>alert('x')</script> [red]now[/red]")
    [request] = Requests(lake, "shop").all()
    out = io.StringIO()
    print_requests([request], Console(file=out, width=200))
    assert "<script>alert('x')</script> [red]now[/red]." in out.getvalue()
    Decisions(lake, "shop").record(decide(lake, FACTS, [], datetime(2026, 6, 5, 9, tzinfo=UTC)).decision)
    page = write_dashboard(lake, "shop", tmp_path / "shop.html", datetime(2026, 6, 6, tzinfo=UTC)).read_text()
    assert "<script>" not in page and "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; [red]now[/red]" in page
