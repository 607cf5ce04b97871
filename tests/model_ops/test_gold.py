"""GOLD: the loss and its gradients are those written out; a student of another tokenizer learns from its teacher."""

import json

import numpy as np
import pytest
import torch
from tiny_chats import conversation, write_rows
from tiny_models import tiny_model as random_model
from tiny_models import write_target
from torch.nn import functional as F

from model_ops.batch import IGNORED
from model_ops.errors import ModelError
from model_ops.job import Job
from model_ops.losses.chunked_head import Head
from model_ops.models.model_directory import load_model, load_tokenizer
from model_ops.objectives.distillation import Divergence, distillation_loss
from model_ops.objectives.gold import Compared, GoldDivergence, MatchedVocabulary, gold_loss, gold_rows
from model_ops.objectives.paired_batches import paired_batch
from model_ops.operations import distill
from model_ops.operations.distill_settings import StudentSettings
from model_ops.progress import Progress
from model_ops.training.documents import Document
from model_ops.training.packing import to_batches
from model_ops.training.paired_chats import PairedDocuments, read_paired

SETTINGS = {"steps": 10, "learning_rate": 1e-2, "tokens_per_step": 512, "max_length": 128}
VOCABULARY = MatchedVocabulary.of(([0, 3, 5], [1, 2, 6]), range(11), range(9))


def divergence(p, q, beta):
    """GKD's table, on numbers that need not add up to 1."""
    if beta == 0:
        return (p * (p / q).log()).sum()
    if beta == 1:
        return (q * (q / p).log()).sum()
    m = beta * p + (1 - beta) * q
    return beta * (p * (p / m).log()).sum() + (1 - beta) * (q * (q / m).log()).sum()


def written_out(p, q, their_tokens, our_tokens, wanted, matched_weight):
    """The cost of one group. p, q: distributions at each of its positions, [tokens, vocab]."""
    before_p = torch.stack([p[i, token] for i, token in enumerate(their_tokens[:-1])] or [p.new_ones(())]).prod()
    before_q = torch.stack([q[i, token] for i, token in enumerate(our_tokens[:-1])] or [q.new_ones(())]).prod()
    merged_p, merged_q = p[-1] * before_p, q[-1] * before_q
    matched = divergence(merged_p[[1, 2, 6]], merged_q[[0, 3, 5]], wanted.beta)
    theirs = sorted((merged_p[i] for i in (0, 3, 4, 5, 7, 8)), reverse=True) + [p.new_zeros(())] * 2
    ours = sorted((merged_q[i] for i in (1, 2, 4, 6, 7, 8, 9, 10)), reverse=True)
    return matched_weight * matched + (1 - matched_weight) * sum((a - b).abs() for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("weight", [None, 0.7, 1.0, 0.0])
def test_a_group_costs_what_the_formula_says_and_so_does_its_gradient_in_float64(beta, weight):
    torch.manual_seed(0)
    wanted = GoldDivergence(1.6, 0.25, beta, weight)
    groups = [([4], [7]), ([1, 2], [3]), ([5], [0, 2, 8]), ([9, 0, 3], [6, 1])]
    logits = [torch.randn(len(ours), 11, dtype=torch.float64, requires_grad=True) for ours, _ in groups]
    taught = [torch.randn(len(theirs), 9, dtype=torch.float64) for _, theirs in groups]
    matched_weight = 3 / 9 if weight is None else weight
    plain = sum(0.75 * 1.6**2 * written_out(torch.softmax(t / 1.6, -1), torch.softmax(z / 1.6, -1), theirs, ours, wanted,
                                            matched_weight)
                for z, t, (ours, theirs) in zip(logits, taught, groups, strict=True))
    gradients = torch.autograd.grad(plain, logits)

    def logs(values, tokens):
        found = torch.log_softmax(values.detach() / 1.6, -1)
        return sum((found[i, token] for i, token in enumerate(tokens[:-1])), torch.zeros((), dtype=torch.float64))

    identity = torch.eye(9, dtype=torch.float64)

    class Exact(Head):
        def logits(self, hidden):
            return hidden @ self.weight.T

    compared = Compared(
        torch.stack([t[-1] for t in taught]), Exact(identity),
        torch.stack([logs(z, g[0]) for z, g in zip(logits, groups, strict=True)]),
        torch.stack([logs(t, g[1]) for t, g in zip(taught, groups, strict=True)]))
    costs, slopes = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    rows = gold_rows(compared, VOCABULARY, wanted, costs, slopes)
    last = torch.stack([z[-1].detach() for z in logits])
    parts = [rows(last[part], part, True) for part in (slice(0, 3), slice(3, 4))]
    torch.testing.assert_close(torch.cat([losses for losses, _ in parts]).sum(), plain.detach(), rtol=1e-9, atol=1e-9)
    of_last = torch.cat([gradient for _, gradient in parts])
    for place, (gradient, (ours, _)) in enumerate(zip(gradients, groups, strict=True)):
        torch.testing.assert_close(of_last[place], gradient[-1], rtol=1e-7, atol=1e-9)
        for at, token in enumerate(ours[:-1]):  # the gradient of an earlier token's log-probability, times the slope
            q = torch.softmax(logits[place][at].detach() / 1.6, -1)
            torch.testing.assert_close(slopes[place] / 1.6 * (F.one_hot(torch.tensor(token), 11) - q), gradient[at],
                                       rtol=1e-7, atol=1e-9)


def documents():
    """Two conversations, each in two tokenisations; the second one's answer has a label in no group."""
    ours = [Document("a", np.array([3, 1, 4, 1, 5, 9]), np.array([0, 0, 1, 1, 1, 1], bool)),
            Document("b", np.array([2, 6, 5, 3]), np.array([0, 1, 1, 1], bool))]
    theirs = [Document("a", np.array([8, 7, 2, 2, 1]), np.zeros(5, bool)),
              Document("b", np.array([5, 4, 4, 0]), np.zeros(4, bool))]
    groups = [np.array([[2, 3, 0, 1, 1], [4, 4, 0, 2, 3], [5, 5, 0, 4, 4]], np.int32),
              np.array([[1, 1, 1, 1, 1], [2, 2, 1, 2, 3]], np.int32)]
    return PairedDocuments(ours, theirs, groups, {})


def test_the_loss_of_a_batch_and_its_gradient_are_those_of_whole_logits():
    student = random_model(layers=1, vocab_size=11, seed=1).requires_grad_(True)
    teacher = random_model(layers=1, vocab_size=9, seed=2)
    for model in (student, teacher):
        model.set_attn_implementation("packed")
    wanted = GoldDivergence(1.0, 0.2, 0.4)
    paired = documents()
    output = gold_loss(teacher, VOCABULARY, wanted)(student, paired_batch(paired, [0, 1]))
    mean = output.terms["loss"]
    plain = 0.0
    for document, groups in zip(paired.documents, paired.groups, strict=True):
        ids = torch.from_numpy(document.input_ids)[None]
        q = torch.softmax(student(ids, document_lengths=[ids.shape[1]]).logits[0], -1)
        covered = set()
        for a, b, there, c, d in groups.tolist():
            other = torch.from_numpy(paired.of_teacher[there].input_ids)[None]
            p = torch.softmax(teacher(other, document_lengths=[other.shape[1]]).logits[0], -1)
            cost = written_out(p[c - 1:d], q[a - 1:b], other[0, c:d + 1].tolist(), ids[0, a:b + 1].tolist(), wanted, 3 / 9)
            plain = plain + 0.8 * cost
            covered |= set(range(a, b + 1))
        for place in np.flatnonzero(document.targets):
            plain = plain - (0.2 if place in covered else 1.0) * q[place - 1, ids[0, place]].log()
    torch.testing.assert_close(mean.sum, plain, rtol=1e-5, atol=1e-5)
    assert float(mean.count) == 6  # five groups, and one label alone
    parameters = [parameter for parameter in student.parameters() if parameter.requires_grad]
    ours, theirs = torch.autograd.grad(mean.sum, parameters), torch.autograd.grad(plain, parameters)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def other_model(directory, template=None):
    """A model with a tokenizer of another size and, if given, another chat template."""
    tokenizer = write_target(directory, layers=2, vocab_size=290, initializer_range=0.05)
    if template:
        (directory / "chat_template.jinja").write_text(template)
    return tokenizer


OTHER_TEMPLATE = """{% for message in messages %}[{{ message.role }}]
{{ message.content }}{% if message.role == 'assistant' %}<|im_end|>{% endif %}
{% endfor %}{% if add_generation_prompt %}[assistant]
{% endif %}"""


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_with_one_tokenizer_it_is_ordinary_distillation(tiny_model, chats, beta):
    tokenizer = load_tokenizer(tiny_model)
    paired = read_paired(chats, "train", tokenizer, tokenizer, 128)
    assert paired.counts["aligned_tokens"] == paired.counts["target_tokens"]
    teacher, student = load_model(tiny_model), load_model(tiny_model)
    torch.manual_seed(0)
    for parameter in student.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    ids = list(range(512))
    loss = gold_loss(teacher, MatchedVocabulary.of((ids, ids), ids, ids), GoldDivergence(beta=beta))
    ours = loss(student, paired_batch(paired, range(8))).terms["loss"]
    [batch] = to_batches(paired.documents[:8], 10_000)
    theirs = distillation_loss(teacher, Divergence(beta=beta))(student, batch).terms["loss"]
    torch.testing.assert_close(ours.sum, theirs.sum, rtol=1e-4, atol=1e-4)
    assert float(ours.count) == float(theirs.count) == int((batch.labels != IGNORED).sum())


@pytest.mark.parametrize("template", [None, OTHER_TEMPLATE])
def test_groups_of_rendered_rows_say_the_same(tiny_model, tmp_path, template):
    turns = [[*conversation(1), {"role": "user", "content": "naïve ✓?"}, {"role": "assistant", "content": "größer ✓ 1+1"}],
             conversation(2)]
    write_rows(tmp_path / "rows", "train", turns)
    other_model(tmp_path / "other", template)
    ours, theirs = load_tokenizer(tmp_path / "other"), load_tokenizer(tiny_model)
    paired = read_paired(tmp_path / "rows", "train", ours, theirs, 256)
    assert paired.counts["aligned_tokens"] == paired.counts["target_tokens"] > 20
    assert max(b - a for groups in paired.groups for a, b, *_ in groups.tolist()) > 0
    said = ""
    for document, groups in zip(paired.documents, paired.groups, strict=True):
        for a, b, there, c, d in groups.tolist():
            mine, other = (tokenizer.convert_ids_to_tokens(list(map(int, ids))) for tokenizer, ids in (
                (ours, document.input_ids[a:b + 1]), (theirs, paired.of_teacher[there].input_ids[c:d + 1])))
            assert "".join(mine) == "".join(other)
            said += "".join(mine)
    answers = [turn["content"] for row in turns for turn in row if turn["role"] == "assistant"]
    assert theirs.convert_tokens_to_string([said]) == "".join(answer + "<|im_end|>" for answer in answers)


@pytest.mark.parametrize(("across", "metric"), [("spelling", "kl"), ("gold", "gold")])
def test_a_student_of_another_tokenizer_learns_and_keeps_its_tokenizer(tiny_model, chats, tmp_path, across, metric):
    other_model(tmp_path / "other", OTHER_TEMPLATE)
    job = Job(operation="distill", output=tmp_path / "out", inputs={"teacher": tiny_model, "dataset": chats},
              settings={**SETTINGS, "base": str(tmp_path / "other"), "across_tokenizers": across})
    metrics = distill.run(job, Progress())
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1][metric] < lines[0][metric] and lines[0]["aligned"] > 0.7
    assert metrics["aligned_tokens"] == metrics["target_tokens"]
    assert json.loads(json.dumps(metrics)) == metrics  # they travel to Dagster as JSON
    kept = load_tokenizer(tmp_path / "out")
    assert kept.get_vocab() == load_tokenizer(tmp_path / "other").get_vocab() != load_tokenizer(tiny_model).get_vocab()
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == OTHER_TEMPLATE
    without = Job(operation="distill", output=tmp_path / "again", inputs={"teacher": tiny_model, "dataset": chats},
                  settings={**SETTINGS, "base": str(tmp_path / "other")})
    with pytest.raises(ModelError, match=r"another tokenizer or chat template than the teacher .*across_tokenizers: spelling"):
        distill.run(without, Progress())


@pytest.mark.parametrize(("given", "named"), [
    ({"mesh": {"dp_shard": 2}}, "mesh"), ({"teacher": "cache"}, "teacher"), ({"overflow": "split"}, "overflow"),
    ({"on_policy": {"share": 0.5}}, r"on_policy\.share"), ({"base": None}, "across_tokenizers is given")])
def test_what_does_not_work_across_tokenizers_is_refused(given, named):
    with pytest.raises(ValueError, match=named):
        StudentSettings(**{"base": "/models/other", "across_tokenizers": "gold", **given})
