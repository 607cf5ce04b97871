"""What a release drafts with: from an evaluation's files, by the recipe's word, and what the release holds and shows of it."""

import json
from copy import deepcopy

import pytest

from benchmarks.small_adapter import small_adapter
from model_ops.adapters.adapter_base import base_of_adapter
from model_ops.drafting.drafting_choice import DraftingChoice
from model_ops.drafting.drafts import NO_DRAFTING, Drafting, with_drafter
from model_ops.evaluation.measurement import TARGET, WITH_DRAFTER
from model_ops.speculators.serving import DrafterServing
from pipelines.rebuilding import copies as copy_artefact
from resources.artefacts.registry import Registry
from resources.artefacts.taint import behind
from resources.endpoints.approvals import recheck
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import describe_files, files_digest, read_manifest
from resources.releases.adapter_form import NoAdapterError, adapter_base, lay_adapter
from resources.releases.drafting_decision import decide_drafting, drafting_sections, form_of, write_choice
from resources.releases.release import ReleaseError, ReleaseSettings, read_release, write_release
from resources.releases.settings import DraftingSettings
from resources.releasing.model_card import card_metadata
from resources.releasing.release_facts import facts_of
from resources.signing.release_signature import release_files

NGRAM = Drafting(method="ngram", num_speculative_tokens=5)
EAGLE3 = {"drafter": "eagle3", "num_speculative_tokens": 3}
REPORT = {
    "measurements": [],
    "acceptance": [
        {"drafter": "ngram", "sampling": "as logged", "num_speculative_tokens": 5, "tau": 1.4},
        {**EAGLE3, "sampling": "greedy", "tau": 2.9, "tau_low": 2.8, "accepted_by_position": [0.9, 0.6, 0.4]},
        {**EAGLE3, "sampling": "as logged", "tau": 1.75, "tau_low": 1.6, "accepted_by_position": [0.5, 0.2, 0.05]},
    ],
    "lookups": {"ngram": {"num_speculative_tokens": 5, "tau": 1.9, "answers": 9, "taus": {"1": 1.2, "5": 1.9}}},
    "not_measured": {"target with suffix lookup, K = 12 in a server": "no arctic", "accuracy": "no items"},
    "in_server": {"kind": "vllm", "version": "0.32.0", "forms": {}},
}


def form(drafting, tau, **speeds):
    rates = {name[1:]: {"median": speed, "p99_s": 100 / speed} for name, speed in speeds.items()}
    greedy = {at: {"median": 1.0, "p99_s": 1.0} for at in rates}
    logged = {"rates": rates, "tau": tau}
    return {"drafting": drafting.model_dump(mode="json"), "tokens_per_second": greedy, "as_logged": logged}


FORMS = {
    "reference": {**form(NO_DRAFTING, None, c1=900), "as_logged": None},
    TARGET: form(NO_DRAFTING, None, c1=100, c8=400),
    WITH_DRAFTER: form(with_drafter(3), 1.75, c1=150, c8=300),
    f"{TARGET} with {NGRAM.label}": form(NGRAM, 1.4, c1=110, c8=390),
}
SPEED = {"in_server": {"forms": FORMS}}


def decide(report=REPORT, speed=SPEED, drafter="eagle3", **settings):
    return decide_drafting(DraftingSettings(**settings), deepcopy(report), deepcopy(speed), drafter, 3)


@pytest.mark.parametrize(("concurrency", "chosen"), [([1], with_drafter(3)), ([8], NO_DRAFTING)])
def test_the_server_decides_at_the_recipes_concurrency(concurrency, chosen):
    choice = decide(concurrency=concurrency)
    assert (choice.drafting, choice.decided_by, choice.server) == (chosen, "server", "vllm 0.32.0")
    assert choice.concurrencies == concurrency and len(choice.curve) == 6
    assert choice.not_measured == {"target with suffix lookup, K = 12": "no arctic"}
    replayed = [f"{each.method} {each.num_speculative_tokens}" for each in choice.replayed]
    assert replayed == ["ngram 5", "drafter 1", "drafter 2", "drafter 3"]
    assert [each.tau for each in choice.replayed] == pytest.approx([1.4, 1.5, 1.7, 1.75])  # as the table of acceptance says


def test_without_a_server_acceptance_decides_and_the_release_says_so():
    without = {name: value for name, value in REPORT.items() if name != "in_server"}
    choice = decide(without, {})
    assert (choice.drafting, choice.decided_by) == (with_drafter(3), "replay") and "no server was asked" in choice.reason
    assert choice.curve == [] and choice.server == ""
    worse = json.loads(json.dumps(without))
    worse["acceptance"][2]["tau_low"] = 1.3
    assert decide(worse, {}).drafting == NGRAM
    gain = {"what": "acceptance_gain", "of": "eagle3", "against": ""}
    gains = {"measurements": [{**gain, "sampling": "greedy", "low": -0.2}, {**gain, "sampling": "as logged", "low": 0.03}]}
    assert decide({**worse, **gains}, {}).drafting == with_drafter(3)
    assert decide({"acceptance": [], "measurements": []}, {}, drafter=None).drafting == NO_DRAFTING


def test_a_server_that_did_not_serve_the_model_decides_nothing():
    failed = {**REPORT, "not_measured": {"target in a server": "vllm did not load it"}}
    choice = decide(failed, {})
    assert choice.decided_by == "replay"
    assert choice.reason.endswith("vllm was asked and did not serve the model: vllm did not load it")


@pytest.mark.parametrize(
    ("choose", "drafter", "drafting"),
    [("drafter", "eagle3", with_drafter(3)), ("none", "eagle3", NO_DRAFTING), ("drafter", None, NO_DRAFTING)],
)
def test_the_recipe_can_decide_and_the_measurements_stay(choose, drafter, drafting):
    choice = decide(drafter=drafter, choose=choose, concurrency=[8])
    assert (choice.drafting, choice.decided_by) == (drafting, "recipe") and len(choice.curve) == 6
    assert f"release.drafting.choose: {choose}" in choice.reason
    assert ("Measured, it would be no drafting" in choice.reason) == (drafting == with_drafter(3))


def test_forms_of_the_evaluation_by_drafting():
    assert form_of(NO_DRAFTING, 3) == TARGET and form_of(with_drafter(3), 3) == WITH_DRAFTER
    assert form_of(with_drafter(2), 3) == "target with drafter, K = 2" and form_of(NGRAM, 3) in SPEED["in_server"]["forms"]


def test_the_decision_is_written_and_shown(tmp_path):
    choice = decide(concurrency=[1])
    write_choice(tmp_path, choice)
    assert DraftingChoice.model_validate_json((tmp_path / "drafting.json").read_text()) == choice
    [section] = drafting_sections(choice)
    assert section.rows[2] == ["drafter, K = 3 (served)", "3", "1", "150", "1.50", "0.67", "0.67", "1.75", "1.17"]
    assert "Drafter, K = 3: 1.50 times" in section.note
    assert "Not measured: target with suffix lookup, K = 12: no arctic." in section.note
    assert "drafter, K = 3 pays up to about" in section.note
    [replayed] = drafting_sections(decide({**REPORT, "in_server": {}}, {}))
    of_drafter = [["drafter", "1", "1.500"], ["drafter", "2", "1.700"], ["drafter (served)", "3", "1.750"]]
    assert replayed.columns == ["drafting", "K", "tau"] and replayed.rows == [["ngram", "5", "1.400"], *of_drafter]
    [nothing] = drafting_sections(decide({"measurements": []}, {}, drafter=None))
    assert nothing.rows == [["no drafting", "", ""]]


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
    files = {"adapter_config.json", "adapter_model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"}
    assert {path.name for path in (released / "adapter").iterdir()} == files
    assert base_of_adapter(released / "adapter") == str((lake.root / release.base.path).resolve())
    script = (released / "serve-vllm.sh").read_text()
    for words in (
        f'"$LAKE/{release.base.path}" --served-model-name tutor-base',
        "--enable-lora --max-lora-rank 16",
        f'--lora-modules "tutor=$LAKE/{release.adapter.path}"',
        f'--tokenizer "$LAKE/{release.adapter.path}"',
    ):
        assert words in script
    assert not (released / "serve-sglang.sh").exists() and recheck(lake, released) == []


def test_signed_packaged_and_pushed_are_adapter_and_base_and_not_the_merged_model(lake, released):
    names = release_files(lake, released)
    assert any("/base_model/" in name for name in names)
    assert f"releases/tutor/{released.name}/adapter/adapter_model.safetensors" in names
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
