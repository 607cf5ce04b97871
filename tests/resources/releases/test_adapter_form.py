"""A release of form adapter: what lies in it, what is part of it, and what is found when another adapter or base is put
there."""

import json

import pytest

from benchmarks.small_adapter import small_adapter
from model_ops.adapters.adapter_base import base_of_adapter
from model_ops.speculators.serving import DrafterServing
from pipelines.rebuilding import copies as copy_artefact
from resources.artefacts.registry import Registry
from resources.artefacts.taint import behind
from resources.endpoints.release_checks import recheck
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import describe_files, files_digest, read_manifest
from resources.releases.adapter_form import NoAdapterError, adapter_base, lay_adapter
from resources.releases.release import ReleaseError, ReleaseSettings, read_release, write_release
from resources.releasing.model_card import card_metadata
from resources.releasing.release_facts import facts_of
from resources.signing.release_signature import release_files


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


@pytest.fixture
def released(lake):
    return small_adapter(lake, 1, rank=12)


def rewritten(directory, **release):
    """Writes a manifest that agrees with the directory's files, as whoever puts other files there would."""
    said = json.loads((directory / "release.json").read_text())
    (directory / "release.json").write_text(json.dumps({**said, **release}))
    files = describe_files(directory)
    made = read_manifest(directory).model_copy(update={"files": files, "digest": files_digest(files, "release")})
    (directory / "manifest.json").write_text(made.model_dump_json())


def test_the_release_names_the_base_and_holds_the_adapter_with_its_tokenizer(lake, released):
    release = read_release(released)
    assert (release.form, release.adapter.rank, release.speculator) == ("adapter", 12, None)
    assert release.adapter.path == f"releases/tutor/{released.name}/adapter" and "/base_model/" in release.base.path
    assert {path.name for path in (released / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
    }
    assert base_of_adapter(released / "adapter") == str((lake.root / release.base.path).resolve())
    script = (released / "serve-vllm.sh").read_text()
    assert (
        f'"$LAKE/{release.base.path}" --served-model-name tutor-base' in script and "--enable-lora --max-lora-rank 16" in script
    )
    assert (
        f'--lora-modules "tutor=$LAKE/{release.adapter.path}"' in script
        and f'--tokenizer "$LAKE/{release.adapter.path}"' in script
    )
    assert not (released / "serve-sglang.sh").exists() and recheck(lake, released) == []


def test_signed_packaged_and_pushed_are_adapter_and_base_and_not_the_merged_model(lake, released):
    names = release_files(lake, released)
    assert (
        any("/base_model/" in name for name in names)
        and f"releases/tutor/{released.name}/adapter/adapter_model.safetensors" in names
    )
    assert not any("/sft_model/" in name for name in names)
    provenance = json.loads((released / "provenance.json").read_text())
    served = {subject["name"] for subject in provenance["subject"]}
    assert served <= set(names) and any(name.endswith("adapter_model.safetensors") for name in served)
    bom = json.loads((released / "bom.cdx.json").read_text())
    [depends] = [each["dependsOn"] for each in bom["dependencies"] if each["ref"].startswith("release:")]
    assert sorted(name.partition("@")[0] for name in depends) == ["model:tutor/base_model", "model:tutor/sft_model"]


def test_another_adapter_or_base_under_good_digests_is_found(lake, released):
    other = small_adapter(lake, 2, rank=12)
    theirs = read_release(other).adapter
    for path in (other / "adapter").iterdir():
        (released / "adapter" / path.name).write_bytes(path.read_bytes())
    mine = read_release(released).adapter
    assert any("adapter_model.safetensors changed" in problem for problem in recheck(lake, released))
    rewritten(released)
    assert any("its files are not those that release.json names" in problem for problem in recheck(lake, released))
    rewritten(released, adapter={**mine.model_dump(), "digest": theirs.digest})
    assert any("which was measured: materialize release_candidate again" in problem for problem in recheck(lake, released))
    base = read_release(small_adapter(lake, 3, base="large")).base
    rewritten(other, base=base.model_dump())
    assert any("was trained on another base than the release names" in problem for problem in recheck(lake, other))


def test_a_base_that_is_gone_or_changed_is_found(lake, released):
    weights = lake.root / read_release(released).base.path / "model.safetensors"
    weights.write_text("other")
    assert any("model.safetensors changed" in problem for problem in recheck(lake, released))
    weights.unlink()
    assert any("model.safetensors changed" in problem for problem in recheck(lake, released))


def test_the_card_calls_it_an_adapter_of_its_base(lake, released):
    release = read_release(released)
    target = read_manifest(lake.root / release.target.path)
    facts = facts_of(lake, release, released.name, [target], None)
    assert ("Served as", f"LoRA adapter of rank 12 on {release.base.name}@{release.base.version}") in facts.lines
    assert card_metadata("tutor", facts, [])["library_name"] == "peft" and facts.relation == "adapter"


def test_a_copy_takes_target_and_base_along(lake, released):
    manifests = [manifest.name for manifest in copy_artefact._parts(lake, read_manifest(released))]
    assert manifests == ["tutor/sft_model", "tutor/base_model"]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (None, r"has no adapter/: set sft\.method to lora or qlora"),
        ({"r": 600}, r"has rank 600, and vLLM serves ranks up to 512"),
        (
            {"r": 8, "target_parameters": ["model.layers.0.mlp.experts.down_proj"]},
            r"experts that are stored as one weight, such as model\.layers\.0",
        ),
    ],
)
def test_a_target_that_cannot_be_an_adapter_is_refused(lake, tmp_path, config, why):
    registry = Registry(lake, "tutor")

    def finished(name, *inputs, **files):
        draft = registry.draft("model", name, "sft", ("model_ops/jobs/job.py",), {}, [each.as_input() for each in inputs])
        (draft.directory / "adapter").mkdir()
        (draft.directory / "config.json").write_text('{"eos_token_id": 7}')
        if files:
            (draft.directory / "adapter" / "adapter_config.json").write_text(json.dumps(files))
        return registry.finish(draft, {})

    base = finished("base_model")
    target = finished("sft_model", base, **(config or {}))
    assert adapter_base(lake, target) == base
    with pytest.raises(NoAdapterError, match=why):
        lay_adapter(tmp_path / "release", "tutor", target, registry.directory(target), base)
    (tmp_path / "r1").mkdir()
    with pytest.raises(ReleaseError, match=why):
        write_release(
            tmp_path / "r1",
            "tutor",
            target,
            None,
            0,
            [],
            DrafterServing("eagle3"),
            None,
            ReleaseSettings(form="adapter"),
            registry.directory(target),
            base=base,
        )
    assert not (tmp_path / "r1" / "release.json").exists() and [item.name for item, _ in behind(lake, [target])] == [
        "tutor/base_model"
    ]


def test_a_model_that_continues_an_earlier_one_has_no_adapter_on_the_base(lake, released):
    target = read_manifest(lake.root / read_release(released).target.path)
    assert adapter_base(lake, target).name == "tutor/base_model"
    continued = target.model_copy(update={"version": "b" * 12, "inputs": [*target.inputs, target.as_input()]})
    with pytest.raises(NoAdapterError, match="continues an earlier version, so its adapter is not one on the base model"):
        adapter_base(lake, continued)
