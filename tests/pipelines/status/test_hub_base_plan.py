"""`millrace status` of a base model on the Hub: its commit is that of the import, and the Hub is not asked."""

import pytest

from model_ops.files import hub
from pipelines.contract.recipe import read_recipe
from pipelines.status.planned_versions import planned_versions
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import external_input
from resources.workshop.training_job import outside_name


@pytest.mark.parametrize(("commit", "branch"), [("a" * 40, None), (None, None), ("a" * 40, "v2")])
def test_an_imported_base_is_as_it_would_be_made_now(tmp_path, monkeypatch, commit, branch):
    monkeypatch.setattr(hub, "imported_commit", lambda *_: pytest.fail("the Hub is not asked"))
    recipe = read_recipe(
        {
            "workload": "shop",
            "base_model": "company/base",
            "sources": {"gateway": {"uri": "logs"}},
            **({"base_revision": branch} if branch else {}),
        },
        tmp_path,
    )
    lake = LakeLayout.open(tmp_path / "lake")
    registry = Registry(lake, "shop")
    draft = registry.draft(
        "model",
        "base_model",
        "import_base",
        ("model_ops/operations/import_base.py",),
        {"model": "company/base", "revision": commit, "mtp_layer": False},
        [external_input(outside_name("company/base", branch or ""))],
    )
    draft.directory.mkdir(parents=True, exist_ok=True)
    (draft.directory / "config.json").write_text("{}")
    made = registry.finish(draft, {})
    planned = planned_versions(recipe, lake, lambda *_: None)["base_model"]
    assert planned.version == made.version and planned.differs_from(made) == ""
