"""SFT, distillation and held-out likelihood on a toy model: they learn, and what they save is what they say."""

import json

import pyarrow.parquet as pq
import pytest
import torch
from tiny_models import run_job
from torch.nn import functional as F

from model_ops.documents import held_out_loss, mean_loss, read_documents
from model_ops.losses.head import Head, chunked_head
from model_ops.models.model_directory import load_model, load_tokenizer
from model_ops.objectives.distillation import Divergence, distillation_rows
from model_ops.operations import StudentSettings, distill, sft
from model_ops.pruning.layer_importance import evenly_spaced, make_student

SETTINGS = {"steps": 25, "learning_rate": 1e-2, "tokens_per_step": 512, "max_length": 128, "checkpoint_every": 10}


@pytest.fixture(scope="module")
def tuned(tiny_model, chats, tmp_path_factory):
    output = tmp_path_factory.mktemp("sft")
    return output, run_job(sft, output, {"model": tiny_model, "dataset": chats}, **SETTINGS)


def test_sft_lowers_the_held_out_loss_and_reports_it_truly(tiny_model, chats, tuned):
    output, metrics = tuned
    documents, _ = read_documents(chats, "validation", load_tokenizer(tiny_model), 128)
    before = mean_loss(held_out_loss(load_model(tiny_model), documents))
    after = mean_loss(held_out_loss(load_model(output), documents))
    assert after < before - 1.0
    assert metrics["validation_loss"] == pytest.approx(after, abs=0.02)
    assert metrics["before_validation_loss"] == pytest.approx(before, abs=0.02)
    assert metrics["saved_validation_loss"] == pytest.approx(after, abs=5e-3)  # of the weights in the file
    assert metrics["rows"] == 40 and metrics["steps"] == 25
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert metrics["tokens"] == sum(line["tokens"] for line in lines) != metrics["row_tokens"]
    assert len(lines) == 25 and {"loss", "grad_norm", "learning_rate", "tokens_per_second"} <= lines[0].keys()


def test_a_continued_training_starts_from_the_earlier_model_and_learns_what_it_lacks(tiny_model, chats, tuned, tmp_path):
    output, before = tuned
    rows = pq.read_table(chats / "train.parquet")
    (tmp_path / "learnt").mkdir()
    pq.write_table(rows.slice(0, 30), tmp_path / "learnt" / "train.parquet")
    metrics = run_job(
        sft,
        tmp_path / "out",
        {"model": tiny_model, "previous": output, "dataset": chats, "learnt": tmp_path / "learnt"},
        **SETTINGS | {"steps": 1, "learning_rate": 1e-7, "replay": 0.5},
    )
    assert (metrics["rows"], metrics["new_rows"], metrics["replayed_rows"]) == (15, 10, 5)
    assert metrics["validation_loss"] < before["validation_loss"] + 0.3  # of the base it is more than 1 higher


def test_held_out_loss_is_each_rows_own(tuned, chats):
    model = load_model(tuned[0])
    documents, _ = read_documents(chats, "validation", load_tokenizer(tuned[0]), 128)
    rows = held_out_loss(model, documents, batch_tokens=100)
    assert [row.row_id for row in rows] == [document.row_id for document in documents]
    for row, document in zip(rows, documents, strict=True):
        ids = torch.from_numpy(document.input_ids).long()
        logits = model(ids[None], use_cache=False).logits[0, :-1]
        kept = torch.from_numpy(document.targets[1:])
        plain = F.cross_entropy(logits[kept], ids[1:][kept], reduction="sum")
        assert row.tokens == int(kept.sum())
        assert row.nll_sum == pytest.approx(float(plain.detach()), rel=1e-4)


def test_students_layers_are_evenly_spaced_with_first_and_last():
    assert evenly_spaced(10, StudentSettings(layers=0.7).depth(10)) == [0, 2, 3, 4, 6, 8, 9]
    assert evenly_spaced(4, 2) == [0, 3] and evenly_spaced(4, 1) == [3]
    assert evenly_spaced(5, StudentSettings(layers=5).depth(5)) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="cannot keep 6 layers"):
        StudentSettings(layers=6).depth(5)


def test_a_student_of_all_layers_is_its_teacher(tuned):
    teacher = load_model(tuned[0])
    student = make_student(teacher, [0, 1, 2, 3])
    ids = torch.arange(3, 40)[None]
    assert torch.equal(student(ids, use_cache=False).logits, teacher(ids, use_cache=False).logits)


def written_out(wanted, given, beta):
    """GKD's divergence by its definition (arXiv 2306.13649)."""

    def kl(one, other):
        return F.kl_div(other, one, log_target=True, reduction="none").sum(-1)

    if beta in (0, 1):
        return kl(wanted, given) if beta == 0 else kl(given, wanted)
    middle = (beta * wanted.exp() + (1 - beta) * given.exp()).log()
    return beta * kl(wanted, middle) + (1 - beta) * kl(given, middle)


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_divergence_and_its_gradient_equal_the_plain_formula(beta):
    torch.manual_seed(0)
    hidden, head = torch.randn(11, 6, requires_grad=True), torch.randn(13, 6, requires_grad=True)
    taught, teacher_head = torch.randn(11, 8), torch.randn(13, 8)
    labels, weights, temperature, label_weight = torch.randint(13, (11,)), torch.rand(11), 1.7, 0.3
    divergences = torch.zeros(11)
    rows = distillation_rows(
        taught, Head(teacher_head), labels, weights, Divergence(temperature, label_weight, beta), divergences
    )
    total, _ = chunked_head(hidden, Head(head), rows, chunk_rows=4)
    logits = hidden @ head.T
    given = torch.log_softmax(logits / temperature, -1)
    wanted = torch.log_softmax(taught @ teacher_head.T / temperature, -1)
    kl = written_out(wanted, given, beta)
    plain = (
        ((1 - label_weight) * temperature**2 * kl + label_weight * F.cross_entropy(logits, labels, reduction="none")) * weights
    ).sum()
    torch.testing.assert_close(total, plain)
    torch.testing.assert_close(divergences, kl.detach())
    ours, theirs = torch.autograd.grad(total, (hidden, head)), torch.autograd.grad(plain, (hidden, head))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("label_weight", [0.0, 1.0])
def test_distillation_writes_a_whole_student(tuned, chats, tmp_path, label_weight):
    metrics = run_job(
        distill,
        tmp_path,
        {"teacher": tuned[0], "dataset": chats},
        **SETTINGS | {"layers": 2, "label_weight": label_weight, "steps": 12},
    )
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["num_hidden_layers"] == 2 and len(config["layer_types"]) == 2
    first, last = metrics["teacher_layers"]  # which one matters less on so small a model follows from its roundings
    assert 0 <= first < last <= 3
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert ("kl" in lines[0]) == (label_weight == 0.0)
    assert load_model(tmp_path).config.num_hidden_layers == 2
