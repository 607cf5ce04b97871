"""Every version of a model gets a card, which is no part of its digest."""

import json

import yaml
from huggingface_hub import ModelCard

from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import changed_files, digest_holds, files_digest, read_manifest
from resources.workshop.workshop import Workshop


def made(workshop, name, op, inputs=(), metrics=None, kind="model", **config):
    def work(output):
        (output / "config.json").write_text("{}")
        if config.get("adapter"):
            (output / "adapter").mkdir()
            (output / "adapter" / "adapter_config.json").write_text("{}")
        return metrics or {}

    return workshop.build(kind, name, op, ("model_ops/jobs/job.py",), config, list(inputs), work)


def card_of(workshop, manifest):
    text = (workshop.directory(manifest) / "README.md").read_text()
    return yaml.safe_load(text.split("---")[1]), text


def test_the_card_says_base_licence_data_metrics_and_how_to_load_it(tmp_path):
    workshop = Workshop(Registry(LakeLayout.open(tmp_path / "lake"), "tutor"), None, threads=1)
    outside = tmp_path / "qwen"
    outside.mkdir()
    (outside / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    base = made(workshop, "base_model", "import_base", [workshop.external(str(outside))], model="Qwen/Qwen3-0.6B")
    metadata, _ = card_of(workshop, base)
    assert metadata["license"] == "apache-2.0" and "base_model_relation" not in metadata
    tuned = made(
        workshop,
        "sft_model",
        "sft",
        [base.as_input()],
        {"validation_loss": 1.25, "steps": 1200, "seconds": 9.5, "unrenderable": {}},
        adapter=True,
    )
    metadata, text = card_of(workshop, tuned)
    assert (metadata["base_model"], metadata["base_model_relation"], metadata["license"]) == (
        ["Qwen/Qwen3-0.6B"],
        "finetune",
        "apache-2.0",
    )
    assert "| validation loss | 1.25 |" in text and "| steps | 1,200 |" in text and "seconds" not in text
    assert "--lora-modules NAME=THIS_DIRECTORY/adapter" in text and f"| tutor/base_model | {base.version} |" in text
    assert ModelCard(text).data.base_model == ["Qwen/Qwen3-0.6B"]
    drafter = made(workshop, "speculator", "speculator", [tuned.as_input()], architecture="eagle3", num_speculative_tokens=5)
    metadata, text = card_of(workshop, drafter)
    assert metadata["tags"] == ["millrace", "speculative-decoding", "eagle3"] and "base_model_relation" not in metadata
    config = json.loads(text.split("--speculative-config '")[1].split("'")[0])
    assert (config["method"], config["num_speculative_tokens"]) == ("eagle3", 5)
    student = made(workshop, "speculator", "speculator", [tuned.as_input()], architecture="of_an_earlier_version")
    assert "vLLM runs no drafter of kind of_an_earlier_version" in card_of(workshop, student)[1]


def test_the_card_is_listed_and_does_not_count_in_the_digest(tmp_path):
    one, other = (Workshop(Registry(LakeLayout.open(tmp_path / name), "tutor"), None, threads=1) for name in ("one", "other"))
    first, second = made(one, "sft_model", "sft", steps=1), made(other, "sft_model", "sft", steps=2)
    assert first.version != second.version and first.digest == second.digest, "the cards differ, the models do not"
    directory = one.directory(first)
    assert "README.md" in {file.path for file in first.files} and digest_holds(first) and changed_files(directory, first) == []
    (directory / "README.md").write_text("other")
    assert changed_files(directory, first) == ["README.md"]
    without = [file for file in first.files if file.path != "README.md"]
    assert files_digest(without) == first.digest


def test_datasets_get_none_and_a_card_of_the_operation_stays(tmp_path):
    workshop = Workshop(Registry(LakeLayout.open(tmp_path / "lake"), "tutor"), None, threads=1)
    rows = made(workshop, "rows", "curate", kind="dataset")
    assert not (workshop.directory(rows) / "README.md").exists()

    def work(output):
        (output / "README.md").write_text("its own")
        return {}

    kept = workshop.build("model", "base_model", "import_base", ("model_ops/jobs/job.py",), {}, [], work)
    assert (workshop.directory(kept) / "README.md").read_text() == "its own" and read_manifest(workshop.directory(kept)) == kept
