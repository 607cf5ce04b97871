"""The served model against its unquantized form: numbers are those of full distributions, and the broken block is named."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import run_job, write_dataset, write_target

from model_ops.documents import Branch, Document, read_documents
from model_ops.evaluation.against_reference import against_reference, long_contexts
from model_ops.evaluation.measurement import LONG_CONTEXT, find
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.jobs import Job, Progress
from model_ops.models.model_directory import load_model, load_tokenizer
from model_ops.operations import quantize


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("reference")
    write_target(root / "float")
    write_dataset(root / "dataset", rows=12)
    shutil.copytree(root / "float", root / "broken")
    weights = load_file(root / "broken/model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, tensor in weights.items():
        if ".layers.1." in name and name.endswith("proj.weight"):
            tensor += torch.randn(tensor.shape, generator=generator).to(tensor.dtype) * tensor.float().std()
    save_file(weights, root / "broken/model.safetensors", {"format": "pt"})
    run_job(quantize, root / "int8", {"model": root / "float"})
    return root


def compare(place, output, target, reference="float", **settings):
    job = Job(
        operation="evaluate",
        output=output,
        inputs={"dataset": place / "dataset", "target": place / target, "reference": place / reference},
    )
    output.mkdir(exist_ok=True)
    return against_reference(job, EvaluateSettings(**settings), Progress())


@torch.no_grad()
def by_definition(place, target):
    """KL(float || target) of each test row over the whole vocabulary, and tokens that agree, without any code of evaluation."""
    documents, _ = read_documents(place / "dataset", "test", load_tokenizer(place / "float"), 4_096)
    models = [load_model(place / name, attention="eager").float().eval() for name in ("float", target)]
    found = {}
    for document in documents:
        ids = torch.tensor(np.array(document.input_ids, dtype=np.int64))[None]
        log_p, log_q = (torch.log_softmax(model(ids).logits[0, :-1].double(), -1) for model in models)
        learnt = torch.tensor(np.array(document.targets[1:]))
        kl = (log_p.exp() * (log_p - log_q)).sum(-1)[learnt]
        found[document.row_id] = (kl.sum().item(), (log_p.argmax(-1) == log_q.argmax(-1))[learnt].sum().item(), len(kl))
    return found


def test_divergence_and_agreement_are_those_of_the_whole_vocabulary(place, tmp_path, monkeypatch):
    monkeypatch.setattr("model_ops.evaluation.against_reference.TOP_K", 100_000)
    found, wanted = compare(place, tmp_path / "a", "broken"), by_definition(place, "broken")
    tokens = sum(row[2] for row in wanted.values())
    divergence = find(found.measurements, "divergence", of="target", against="reference")
    assert divergence.value == pytest.approx(sum(row[0] for row in wanted.values()) / tokens, rel=2e-3)
    assert divergence.low < divergence.value < divergence.high and divergence.n == len(wanted)
    assert find(found.measurements, "agreement").value == pytest.approx(sum(row[1] for row in wanted.values()) / tokens)
    worst = sorted(wanted, key=lambda row: -wanted[row][0] / wanted[row][2])
    assert [row["row_id"] for row in found.worst_rows] == worst[:10]


def test_few_kept_tokens_bound_the_divergence_from_below(place, tmp_path, monkeypatch):
    exact = sum(row[0] for row in by_definition(place, "broken").values())
    monkeypatch.setattr("model_ops.evaluation.against_reference.TOP_K", 8)
    found = find(compare(place, tmp_path / "a", "broken").measurements, "divergence")
    tokens = sum(row[2] for row in by_definition(place, "broken").values())
    assert 0 < found.value < exact / tokens


def test_the_block_that_costs_most_is_named_where_something_is_lost(place, tmp_path):
    found = compare(place, tmp_path / "a", "broken")
    assert found.blocks[0]["block"] == 1 and len(found.blocks) == 8
    whole = find(found.measurements, "divergence").value
    assert found.blocks[0]["cost"] == pytest.approx(whole, rel=0.05), "all that is broken is in this block"
    assert all(abs(block["cost"]) < 0.01 * whole for block in found.blocks[1:])
    assert compare(place, tmp_path / "b", "int8").blocks == []


def test_int8_keeps_what_its_model_says(place, tmp_path):
    found = compare(place, tmp_path / "a", "int8", max_length=128)
    assert find(found.measurements, "divergence").value < 2e-3 and find(found.measurements, "agreement").value > 0.9
    long = find(found.measurements, "recovery", on=LONG_CONTEXT)
    assert long.value == pytest.approx(1, abs=0.01) and long.counted == "contexts" and found.not_measured == {}


def test_one_model_or_rows_too_short(place, tmp_path, monkeypatch):
    assert compare(place, tmp_path / "a", "float").measurements == []
    monkeypatch.setattr("model_ops.evaluation.against_reference.FEWEST_LONG", 50)
    short = compare(place, tmp_path / "b", "int8", max_length=96)
    assert find(short.measurements, "recovery") is None
    assert short.not_measured == {
        LONG_CONTEXT: "the test rows are too short for 50 contexts of 96 tokens; add test rows, or lower evaluation.max_length"
    }


def test_a_finished_comparison_is_not_made_again(place, tmp_path, monkeypatch):
    first = compare(place, tmp_path / "a", "int8")
    monkeypatch.setattr("model_ops.evaluation.against_reference.scored_model", lambda _: pytest.fail("loaded again"))
    assert compare(place, tmp_path / "a", "int8") == first
    assert json.loads((tmp_path / "a/.work/against-reference.json").read_text())["value"]["rows"]


def test_another_tokenizer_is_named(place, tmp_path):
    shutil.copytree(place / "float", place / "other", dirs_exist_ok=True)
    made = json.loads((place / "other/tokenizer.json").read_text())
    made["added_tokens"].append({**made["added_tokens"][0], "id": 10**4, "content": "<|new|>"})
    (place / "other/tokenizer.json").write_text(json.dumps(made))
    found = compare(place, tmp_path / "a", "int8", reference="other")
    assert "different tokenizers" in found.not_measured["divergence of target against reference"]


def document(name, length, branches=()):
    return Document(name, np.arange(length, dtype=np.int32), np.ones(length, bool), branches=branches)


def test_long_contexts_are_whole_and_count_in_their_second_half():
    found = long_contexts([document(str(n), 7) for n in range(10)], 16)
    assert [len(each) for each in found] == [16, 16, 16] and {each.row_id for each in found} == {"long-0", "long-1", "long-2"}
    for each in found:
        assert each.input_ids.tolist() == [*range(7), *range(7), 0, 1]
        assert not each.targets[:8].any() and each.targets[8:].all()
    assert (
        long_contexts([document("a", 16)], 16) == [] and len(long_contexts([document(str(n), 9) for n in range(99)], 16)) == 8
    )
    branched = [document(str(n), 12, (Branch(4, 4),)) for n in range(4)]
    assert [each.input_ids.tolist() for each in long_contexts(branched, 16)] == [[*range(8), *range(8)]] * 2
