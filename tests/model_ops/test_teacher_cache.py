"""A teacher's cached distributions: they are its own, their divergence is exact over buckets, and training with them
teaches."""

import json
import math

import numpy as np
import pytest
import torch
from stop_after import StopAfter
from tiny_models import run_job, tiny_model
from torch.nn import functional as F

import model_ops.models.attention  # noqa: F401 (registers "packed")
from model_ops.documents import Branch, Document, PackedPlan
from model_ops.jobs import Job, Progress, Stopped
from model_ops.losses.head import Head, chunked_head
from model_ops.objectives.distillation import Divergence, distillation_loss
from model_ops.objectives.divergences import generalised_jsd
from model_ops.objectives.teacher_cache import ABOUT, CachedBatch, TeacherCache, cached_rows, from_tail, with_tail
from model_ops.operations import StudentSettings, distill, sft

VOCABULARY = 96


def documents():
    generator = np.random.default_rng(0)
    plain = [
        Document(f"r{i}", generator.integers(3, VOCABULARY, length), generator.random(length) < 0.5)
        for i, length in enumerate((20, 33, 7, 15))
    ]
    mask = np.isin(np.arange(16), (6, 7, 12, 15))
    return [
        *plain,
        Document("branch", generator.integers(3, VOCABULARY, 16), mask, branches=(Branch(5, 6),)),
        Document("nothing", generator.integers(3, VOCABULARY, 9), np.zeros(9, bool)),
    ]


def teacher(**changes):
    model = tiny_model(vocab_size=VOCABULARY, **changes)
    model.set_attn_implementation("packed")
    return model


@pytest.mark.parametrize("batch_tokens", [16, 4_096])
def test_each_target_holds_the_teacher_s_likeliest_tokens(tmp_path, batch_tokens):
    model, rows = teacher(), documents()
    cache = TeacherCache.write(tmp_path, model, rows, top_k=5, temperature=1.5, precision="float32", batch_tokens=batch_tokens)
    assert cache.bytes_per_target == 5 * 4 and (tmp_path / ABOUT).exists()
    for index, row in enumerate(rows[:4]):
        logits = model(
            torch.from_numpy(row.input_ids)[None], use_cache=False, position_ids=torch.arange(len(row))[None]
        ).logits[0]
        wanted = (logits / 1.5).log_softmax(-1).topk(5)
        taught = cache.added_to(row, index)
        for place in range(len(row)):
            if place + 1 < len(row) and row.targets[place + 1]:
                assert taught.streams["teacher_ids"][place].tolist() == wanted.indices[place].tolist()
                np.testing.assert_allclose(taught.streams["teacher_logs"][place], wanted.values[place], atol=4e-3)
            else:
                assert not taught.streams["teacher_ids"][place].any()


def test_the_divergence_with_every_token_is_that_of_the_online_teacher(tmp_path):
    model, rows = teacher(), documents()
    student = teacher(seed=3).requires_grad_(True)
    settings = StudentSettings(steps=1, tokens_per_step=4_096, max_length=64).resolved()
    cache = TeacherCache.write(tmp_path, model, rows, top_k=VOCABULARY, temperature=1.0, precision="float32")
    (online,), (cached,) = PackedPlan(rows, settings).step(0), PackedPlan(rows, settings, cache).step(0)
    assert isinstance(cached, CachedBatch)
    for beta in (0.0, 0.5, 1.0):
        of_rows = Divergence(beta=beta, label_weight=0.2)
        outputs = [distillation_loss(model, of_rows)(student, online), distillation_loss(None, of_rows)(student, cached)]
        first, second = (output.terms["loss"].sum for output in outputs)
        torch.testing.assert_close(first, second, rtol=2e-3, atol=0)
        assert outputs[0].metrics.keys() == outputs[1].metrics.keys()


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_the_gradient_over_buckets_equals_autograd_s(beta):
    torch.manual_seed(0)
    hidden, head = torch.randn(9, 6, requires_grad=True), torch.randn(13, 6, requires_grad=True)
    log_p = torch.randn(9, 13).log_softmax(-1)
    logs, ids = log_p.topk(4)
    labels, weights, told = torch.randint(13, (9,)), torch.rand(9), torch.zeros(9)
    rows = cached_rows(ids, logs, None, labels, weights, 1.3, 0.25, beta, told)
    total, _ = chunked_head(hidden, Head(head), rows, chunk_rows=4)
    logits = hidden @ head.T
    log_q = (logits / 1.3).log_softmax(-1)
    others = torch.ones_like(log_q, dtype=torch.bool).scatter_(1, ids, False)
    bucket_q = torch.cat([log_q.gather(1, ids), (log_q.exp() * others).sum(-1, keepdim=True).log()], -1)
    bucket_p = torch.cat([logs, (log_p.exp() * others).sum(-1, keepdim=True).log()], -1)

    def kl(one, other):
        return (one.exp() * (one - other)).sum(-1)

    middle = (beta * bucket_p.exp() + (1 - beta) * bucket_q.exp()).log()
    plain = (
        kl(bucket_p, bucket_q)
        if beta == 0
        else kl(bucket_q, bucket_p)
        if beta == 1
        else (beta * kl(bucket_p, middle) + (1 - beta) * kl(bucket_q, middle))
    )
    wanted = ((0.75 * 1.3**2 * plain + 0.25 * F.cross_entropy(logits, labels, reduction="none")) * weights).sum()
    torch.testing.assert_close(total, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(told, plain.detach(), rtol=1e-4, atol=1e-5)
    for one, other in zip(torch.autograd.grad(total, (hidden, head)), torch.autograd.grad(wanted, (hidden, head)), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=1e-4)


def test_buckets_never_say_more_than_the_whole_vocabulary():
    torch.manual_seed(1)
    log_p, log_q = (3 * torch.randn(50, 40)).log_softmax(-1), (3 * torch.randn(50, 40)).log_softmax(-1)
    logs, ids = log_p.topk(6)
    whole, _ = generalised_jsd(log_p, log_q, 0.0)
    part, _ = generalised_jsd(with_tail(logs), with_tail(log_q.gather(1, ids)), 0.0)
    assert (part <= whole + 1e-5).all() and (part > 0).all()


def test_a_teacher_that_is_sure_leaves_finite_numbers():
    logs, ids = torch.tensor([[0.0, -40.0]]), torch.tensor([[1, 2]])
    logits = torch.tensor([[0.0, 50.0, 0.0, 0.0]])
    for beta in (0.0, 0.5, 1.0):
        told = torch.zeros(1)
        rows = cached_rows(ids, logs, None, torch.tensor([1]), torch.ones(1), 1.0, 0.0, beta, told)
        losses, gradient = rows(logits.clone(), slice(0, 1), True)
        assert math.isfinite(losses.item()) and torch.isfinite(gradient).all() and gradient.abs().max() < 1


def test_drawn_tokens_estimate_the_divergence_and_its_gradient_without_bias():
    """The mean over many draws is the divergence over the whole vocabulary; one bucket stays below it."""
    torch.manual_seed(2)
    log_p, logits = (2 * torch.randn(3, 40)).log_softmax(-1), 2 * torch.randn(3, 40)
    wanted, gradient = generalised_jsd(log_p, (logits / 1.2).log_softmax(-1), 0.0)
    draws, generator = 4_000, torch.Generator().manual_seed(0)
    likely = log_p.topk(4).indices.repeat(draws, 1)
    all_p = log_p.repeat(draws, 1)
    drawn = from_tail(all_p, likely, 3, generator)
    assert not (drawn[..., None] == likely[:, None]).any()
    ids = torch.cat([likely, drawn], 1)
    logs = all_p.gather(1, ids)
    tail = 1 - logs[:, :4].exp().sum(1, keepdim=True)
    masses = torch.cat([logs[:, :4].exp(), (tail / 3).expand(-1, 3)], 1)
    told, zeros = torch.zeros(len(ids)), torch.zeros(len(ids), dtype=torch.long)
    rows = cached_rows(ids, logs, masses, zeros, torch.ones(len(ids)), 1.2, 0.0, 0.0, told)
    losses, found = rows(logits.repeat(draws, 1), slice(0, len(ids)), True)
    torch.testing.assert_close(told.view(draws, 3).mean(0), wanted, rtol=0.01, atol=0)
    torch.testing.assert_close(losses, 1.2**2 * told)
    torch.testing.assert_close(found.view(draws, 3, 40).mean(0), 1.2 * gradient, rtol=0, atol=3e-3)
    assert (
        generalised_jsd(with_tail(logs[:3, :4]), with_tail((logits / 1.2).log_softmax(-1).gather(1, likely[:3])), 0.0)[0]
        < 0.97 * wanted
    ).all()


def test_a_cache_with_drawn_tokens_holds_the_likeliest_and_others(tmp_path):
    model, rows = teacher(), documents()
    cache = TeacherCache.write(tmp_path, model, rows, top_k=9, temperature=1.0, precision="float32", drawn=4)
    plain = TeacherCache.write(tmp_path / "plain", model, rows, top_k=5, temperature=1.0, precision="float32")
    for index, row in enumerate(rows):
        ours, other = cache.added_to(row, index).streams, plain.added_to(row, index).streams
        at = np.flatnonzero(row.targets[1:])
        np.testing.assert_array_equal(ours["teacher_ids"][at, :5], other["teacher_ids"][at])
        assert all(not set(ids[:5]) & set(ids[5:]) for ids in ours["teacher_ids"][at])
        np.testing.assert_allclose(ours["teacher_masses"][at].sum(1), 1, atol=2e-3)
        np.testing.assert_allclose(ours["teacher_masses"][at, :5], np.exp(other["teacher_logs"][at]), rtol=1e-3)


@pytest.fixture(scope="module")
def tuned(tiny_model, chats, tmp_path_factory):
    output = tmp_path_factory.mktemp("teacher")
    run_job(
        sft, output, {"model": tiny_model, "dataset": chats}, steps=15, learning_rate=1e-2, tokens_per_step=512, max_length=128
    )
    return output


def job(tuned, chats, output, **changes):
    return Job(
        operation="distill",
        output=output,
        inputs={"teacher": tuned, "dataset": chats},
        settings={
            "steps": 10,
            "learning_rate": 3e-3,
            "tokens_per_step": 512,
            "max_length": 128,
            "layers": 2,
            "teacher": "cache",
            **changes,
        },
    )


def test_a_student_learns_from_the_cache_what_it_learns_online(tuned, chats, tmp_path):
    losses = {}
    for name in ("cache", "online"):
        metrics = distill.run(job(tuned, chats, tmp_path / name, teacher=name), Progress())
        losses[name] = metrics["validation_loss"]
    assert losses["cache"] == pytest.approx(losses["online"], abs=0.04)
    lines = [json.loads(line) for line in (tmp_path / "cache" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["kl"] < lines[0]["kl"]


def test_a_stopped_run_reads_its_cache_again(tuned, chats, tmp_path, monkeypatch):
    with pytest.raises(Stopped):
        distill.run(job(tuned, chats, tmp_path, checkpoint_every=2), StopAfter(4, "distill"))
    monkeypatch.setattr(TeacherCache, "write", None)
    assert distill.run(job(tuned, chats, tmp_path, checkpoint_every=2), Progress())["resumed_from"] == 4


def test_a_mesh_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"teacher is cache.*leave mesh out"):
        StudentSettings(teacher="cache", choose_layers="even", mesh={"dp_shard": 2})
