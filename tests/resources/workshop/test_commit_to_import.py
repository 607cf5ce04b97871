"""The commit of the Hub at which a base model is imported: which one it is, and that its files are imported."""

import pytest

from model_ops.files import hub as hub_module
from model_ops.files.hub import imported_commit, is_commit
from model_ops.jobs import Job
from model_ops.operations.distill_settings import StudentSettings
from model_ops.operations.import_base import download
from model_ops.operations.quantize_settings import QuantizeSettings
from model_ops.operations.sft_settings import SftSettings
from model_ops.operations.table import OPERATIONS
from resources.artefacts.registry import Registry
from resources.digests.code import source_digest
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import artefact_version, external_input
from resources.workshop.training_job import commit_to_import, counted_settings, outside_name
from tests.hub_of_models import hub_of_models

BASE = "company/base"
FILES = {"model.safetensors": b"weights", "config.json": b"{}", "README.md": b"read me"}


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


@pytest.mark.parametrize(
    "state",
    [
        {"status": 503},
        {"status": 401},
        {"body": b"<html>"},
        {"body": b'{"id": "x"}'},
        {"body": b"[]"},
        {"body": b'"x"'},
        {"body": b'{"id": "x", "siblings": [{}]}'},
        {"pause_s": 0.5},
    ],
)
def test_a_hub_that_is_away_slow_or_wrong_is_asked_once_and_fails_nothing(hub, monkeypatch, state):
    monkeypatch.setattr(hub_module, "TIMEOUT_S", 0.2)
    then = hub.commit(BASE, FILES)
    assert imported_commit(BASE) == then and len(hub.asked) == 1
    for name, value in state.items():
        setattr(hub, name, value)
    assert imported_commit(BASE) is None and len(hub.asked) == 2


@pytest.mark.parametrize(
    "operation, settings",
    [
        ("sft", SftSettings()),
        ("distill", StudentSettings()),
        ("distill", StudentSettings(base="/models/small")),
        ("quantize", QuantizeSettings()),
        ("quantize", QuantizeSettings(scheme="w4a16", distil={"enabled": True})),
    ],
)
def test_a_job_with_every_setting_named_is_read_as_the_recipe_was(tmp_path, operation, settings):
    config = settings.resolved().model_dump(mode="json")
    job = Job(operation=operation, output=tmp_path, settings=config)
    assert job.settings_as(OPERATIONS[operation]).model_dump(mode="json") == config


def test_settings_that_change_no_result_make_no_new_version_also_within_an_operation():
    def counted(**distil):
        return counted_settings(QuantizeSettings(scheme="w4a16", distil={"enabled": True, **distil}).resolved())

    assert counted(dry_run=False, keep_checkpoints=7, activation_checkpointing="full") == counted()
    assert counted(seed=7) != counted()
