"""A base model on the Hub: asked for at most once an hour, never offline, held back by nothing, and a cause where its files
changed."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from model_ops.files import hub as hub_module
from model_ops.files.hub import MODEL_FILES, hub_model, imported_commit, is_commit
from model_ops.jobs.errors import ModelError
from model_ops.operations.base_directory import TAKEN
from model_ops.operations.import_base import download
from resources.artefacts.registry import Registry
from resources.deciding.actions import Work
from resources.deciding.base_versions import hub_commits
from resources.deciding.causes import causes
from resources.deciding.decisions import Decisions
from resources.deciding.policy import decide
from resources.digests.code import source_digest
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import artefact_version, external_input
from resources.workshop.training_job import commit_to_import, outside_name
from tests.hub_of_models import hub_of_models
from tests.resources.deciding.examples import FACTS, SEEN, SETTINGS
from tests.resources.deciding.small_lake import trained_lake

NOW = datetime(2026, 6, 5, 9, tzinfo=UTC)
BASE = "company/base"
FILES = {"model.safetensors": b"weights", "config.json": b"{}", "README.md": b"read me"}
HOUR = timedelta(hours=1)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with hub_of_models() as hub:
        hub.used_by(monkeypatch, tmp_path / "cache")
        yield hub


def imported(lake, revision, model=BASE, branch="", **config):
    """The base model of a lake, as an import of this commit leaves it."""
    registry = Registry(lake, "shop")
    draft = registry.draft(
        "model",
        "base_model",
        "import_base",
        ("model_ops/operations/import_base.py",),
        {"model": model, "revision": revision, **config},
        [external_input(outside_name(model, branch))],
    )
    draft.directory.mkdir(parents=True, exist_ok=True)
    (draft.directory / "model.safetensors").write_bytes(b"weights")
    return registry.finish(draft, {})


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


def test_another_commit_with_other_weights_is_told_and_the_hub_is_asked_once_an_hour(hub, lake):
    then = hub.commit(BASE, FILES)
    made = imported(lake, then)
    assert hub_commits(lake, made, BASE, NOW) == (then, then)
    later = hub.commit(BASE, FILES | {"model.safetensors": b"others!"})
    assert hub_commits(lake, made, BASE, NOW + 0.9 * HOUR) == (then, then) and len(hub.asked) == 1
    assert hub_commits(lake, made, BASE, NOW + HOUR) == (then, later)
    asked = len(hub.asked)
    assert hub_commits(lake, made, BASE, NOW + 1.5 * HOUR) == (then, later) and len(hub.asked) == asked
    assert hub_commits(lake, imported(lake, later), BASE, NOW + 1.6 * HOUR) == (later, later) and len(hub.asked) == asked


def test_a_commit_that_changes_no_file_of_the_model_is_none(hub, lake):
    then = hub.commit(BASE, FILES)
    made = imported(lake, then)
    for hour, files in enumerate(
        (FILES | {"README.md": b"better"}, FILES | {"onnx/config.json": b"1", "pytorch_model.bin": b"2"})
    ):
        hub.commit(BASE, files)
        assert hub_commits(lake, made, BASE, NOW + hour * HOUR) == (then, then)
    assert hub.asked.count(f"/api/models/{BASE}/revision/{then}") == 1
    tokenizer = hub.commit(BASE, FILES | {"tokenizer.json": b"{}"})
    assert hub_commits(lake, made, BASE, NOW + 2 * HOUR) == (then, tokenizer)
    assert MODEL_FILES == TAKEN


def test_a_hub_that_is_away_slow_or_wrong_is_asked_again_an_hour_later_and_fails_nothing(hub, lake, monkeypatch):
    then = hub.commit(BASE, FILES)
    made = imported(lake, then)
    monkeypatch.setattr(hub_module.hub_model, "__defaults__", (None, 0.2))
    for hour, state in enumerate(
        (
            {"status": 503},
            {"status": 401},
            {"body": b"<html>"},
            {"body": b'{"id": "x"}'},
            {"body": b"[]"},
            {"body": b'"x"'},
            {"body": b'{"id": "x", "siblings": [{}]}'},
            {"pause_s": 0.5},
        )
    ):
        for name, value in {"status": 200, "body": None, "pause_s": 0.0, **state}.items():
            setattr(hub, name, value)
        before = len(hub.asked)
        for minute in (0, 30):
            assert hub_commits(lake, made, BASE, NOW + hour * HOUR + timedelta(minutes=minute)) == (then, then), state
        assert len(hub.asked) == before + 1, state
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert hub_commits(lake, made, BASE, NOW + 9 * HOUR) == (then, then)
    with pytest.raises(ModelError, match="does not tell the current commit of company/base") as error:
        hub_model(BASE)
    assert "127.0.0.1" not in str(error.value)


def test_what_was_seen_stays_while_the_hub_is_away_and_a_clock_that_was_wrong_is_no_reason_to_wait(hub, lake):
    then = hub.commit(BASE, FILES)
    made, later = imported(lake, then), hub.commit(BASE, FILES | {"config.json": b"[]"})
    assert hub_commits(lake, made, BASE, NOW + timedelta(days=30)) == (then, later)
    hub.status = 500
    asked = len(hub.asked)
    assert hub_commits(lake, made, BASE, NOW) == (then, later) and len(hub.asked) == asked + 1


def test_the_branch_that_the_recipe_names_is_looked_at_and_a_commit_is_not(hub, lake):
    first, second = hub.commit(BASE, FILES), hub.commit(BASE, FILES | {"config.json": b"[]"})
    made = imported(lake, first, branch=first)
    assert hub_commits(lake, made, BASE, NOW, first) == (None, None) and hub.asked == []
    assert hub_commits(lake, made, BASE, NOW, "main") == (first, second) and hub.asked[0].endswith("/revision/main")
    assert hub_commits(lake, made, BASE, NOW + HOUR, "gone") == (
        first,
        second,
    )  # a branch that is gone is as a Hub that is away


def test_nothing_is_asked_offline_nor_of_a_base_whose_commit_is_unknown(hub, lake, monkeypatch):
    then = hub.commit(BASE, FILES)
    made = imported(lake, then)
    for manifest in (None, imported(lake, None), imported(lake, "main"), imported(lake, then, model="company/other")):
        assert hub_commits(lake, manifest, BASE, NOW) == (None, None)
    for word in ("1", "ON", "true", "Yes"):
        monkeypatch.setenv("HF_HUB_OFFLINE", word)
        assert hub_commits(lake, made, BASE, NOW) == (None, None)
    assert hub.asked == []


def test_a_new_commit_is_decided_once_and_its_run_imports_exactly_this_commit(hub, tmp_path):
    lake = trained_lake(tmp_path, days=1, rows=10)
    facts, then = replace(FACTS, base_repository=BASE), hub.commit(BASE, FILES)
    imported(lake, then)
    idle = decide(lake, facts, [], NOW)
    assert idle.decision is None and idle.again_at == NOW + HOUR
    later = hub.commit(BASE, FILES | {"model.safetensors": b"others!"})
    made = decide(lake, facts, [], NOW + HOUR)
    assert (made.decision.cause, made.decision.action) == ("base_revision", "full")
    assert made.decision.cause_text == f"the base model changed: {then[:12]} was trained from, {later[:12]} is there now"
    assert made.work.overrides["base_model"] == {"revision": later} and "base_model" in made.work.stages
    ledger = Decisions(lake, "shop")
    ledger.record(made.decision)
    [read] = ledger.all()
    assert Work.of(read, facts).overrides["base_model"] == {"revision": later}  # asked for again after a restart
    assert "base_model" not in Work.of(replace(read, cause="schedule"), facts).overrides
    ended = replace(read, outcome="failed", settled_ts=NOW)
    assert decide(lake, facts, [ended], NOW + timedelta(days=20)).decision is None


def test_a_recipe_may_leave_the_cause_out():
    changed = replace(SEEN, base_then="a" * 40, base_now="b" * 40)
    assert next(each.kind for each in causes(changed, SETTINGS)) == "base_revision"
    assert all(each.kind != "base_revision" for each in causes(changed, SETTINGS.model_copy(update={"causes": ["new_logs"]})))


def test_a_base_stays_at_its_commit_until_another_one_is_asked_for(hub, lake, tmp_path):
    registry = Registry(lake, "shop")

    def ask(model, revision):
        asked.append((model, revision))
        return "c" * 40

    asked = []

    def commit(model=BASE, branch="", wanted=None):
        asked.clear()
        return commit_to_import(registry, model, branch, wanted, ask)

    assert commit() == "c" * 40 and asked == [(BASE, None)]
    imported(lake, "a" * 40)
    assert commit() == "a" * 40 and asked == []
    assert commit(wanted="b" * 40) == "b" * 40 and asked == []
    assert commit(wanted="v2") == "c" * 40 and asked == [(BASE, "v2")]
    assert commit_to_import(registry, BASE, "", "v2", lambda *_: None) == "v2"  # the import says what is wrong with it
    assert commit("company/other") == "c" * 40
    assert commit(str(tmp_path), wanted="b" * 40) is None
    assert commit(branch="v2") == "c" * 40 and asked == [(BASE, "v2")]  # the recipe names another branch now
    imported(lake, "e" * 40, branch="v2")
    assert commit(branch="v2") == "e" * 40 and asked == []
    assert commit(branch="b" * 40) == "b" * 40 and asked == []


def test_a_base_that_was_imported_before_commits_were_recorded_stays_valid(lake):
    registry, made = Registry(lake, "shop"), imported(lake, None)
    found = commit_to_import(registry, BASE, "", None, lambda *_: pytest.fail("nothing is asked"))
    assert found is None and made.version == artefact_version(
        "import_base", source_digest("model_ops/operations/import_base.py"), {"model": BASE, "revision": found}, made.inputs
    )
    path = registry.directory(made) / "manifest.json"
    path.write_text(path.read_text().replace('"mtp_layer"', '"mtp"').replace(made.version, "0" * 12))  # as of other code
    other = registry.directory(made).with_name("0" * 12)
    registry.directory(made).rename(other)
    pointer = other.parent / "current.json"
    pointer.write_text(pointer.read_text().replace(made.version, "0" * 12))
    assert commit_to_import(registry, BASE, "", None, lambda *_: "c" * 40) == "c" * 40  # it is imported again in any case


def test_an_import_of_a_commit_takes_its_files_and_not_newer_ones_also_offline(hub, monkeypatch):
    first = hub.commit(BASE, FILES)
    hub.commit(BASE, FILES | {"model.safetensors": b"others!"})
    place = download(BASE, first)
    assert place.name == first and {path.name: path.read_bytes() for path in place.iterdir()} == {
        name: content for name, content in FILES.items() if name != "README.md"
    }
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert download(BASE, first) == place and imported_commit(BASE, first) == first


def test_the_commit_of_an_import_is_the_hubs_else_that_of_the_cache_else_unknown(hub, tmp_path, monkeypatch):
    then = hub.commit(BASE, FILES)
    assert imported_commit(BASE) == imported_commit(BASE, "main") == imported_commit(BASE, then) == then
    cached, home = "d" * 40, tmp_path / "cache" / "models--company--base"
    for path, content in {"refs/main": cached, f"snapshots/{cached}/config.json": "{}"}.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(content)
    hub.status = 503
    assert imported_commit(BASE) == cached and imported_commit("company/none") is None
    asked = len(hub.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert imported_commit(BASE) == cached and len(hub.asked) == asked
    assert is_commit(cached) and not any(map(is_commit, (None, "", "main", "D" * 40, "d" * 41)))
