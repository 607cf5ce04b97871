"""A teacher's distribution in a student's tokens: as written out token by token, and that of one tokenizer where there is
one."""

import heapq
import inspect
import json
import textwrap

import numpy as np
import pytest
import torch
from tiny_chats import conversation, write_rows
from tiny_models import tiny_model as random_model
from tiny_models import write_target

from model_ops.documents.packing import to_batches
from model_ops.jobs.errors import ModelError
from model_ops.jobs.job import Job
from model_ops.jobs.progress import Progress
from model_ops.models.model_directory import load_tokenizer
from model_ops.objectives.distillation import Divergence, distillation_loss
from model_ops.objectives.paired_batches import paired_batch
from model_ops.objectives.paired_chats import read_paired
from model_ops.objectives.spelling import FIRST, Spelling
from model_ops.objectives.spelt_distillation import spelt_distillation_loss
from model_ops.operations import distill
from model_ops.operations.distill_settings import StudentSettings
from model_ops.operations.tiny_base import train_tokenizer
from model_ops.operations.tiny_base_settings import TinyBaseSettings
from model_ops.rendering.token_bytes import TokenBytes

SETTINGS = {"steps": 10, "learning_rate": 1e-2, "tokens_per_step": 512, "max_length": 128}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Tokenizers of different vocabularies (the student's first), rows of both, and their spelling."""
    folder = tmp_path_factory.mktemp("spelling")
    texts = [inspect.getsource(module).split("class ")[0] for module in (textwrap, heapq)]
    tokenizers = [
        train_tokenizer(found, TinyBaseSettings(vocab_size=size)) for found, size in ((texts[:1], 600), (texts, 1_000))
    ]
    answers = ["naïve ✓ größer 1+1", *texts[1].split("\n\n")[:20]]
    write_rows(
        folder,
        "train",
        [
            [*conversation(number), {"role": "user", "content": "and?"}, {"role": "assistant", "content": answer}]
            for number, answer in enumerate(answers)
        ],
    )
    paired = read_paired(folder, "train", *tokenizers, 256)
    return tokenizers, paired, Spelling.of(*tokenizers, paired, tuple(map(len, tokenizers)))


def written_out(p, q, spelling, first_of, place):
    """P as the module defines it, by loops. first_of: teacher's token -> student's token -> count over groups and spellings."""
    said, taught, begun = place
    found, of_student = {}, {}
    for counts in first_of.values():
        for v, count in counts.items():
            of_student[v] = of_student.get(v, 0) + count
    for token, pieces in spelling.pieces.items():
        if begun is None:
            ways = {v: q[v] * count / of_student[v] for v, count in first_of[token].items()}
            for v, way in ways.items():
                found[v] = found.get(v, 0) + p[token] * way / sum(ways.values())
        elif len(pieces) > len(begun) and pieces[: len(begun)] == begun:
            v = said if token == taught else pieces[len(begun)]
            found[v] = found.get(v, 0) + p[token]
    total = sum(found.values())
    return {v: mass / total for v, mass in found.items()}


def test_a_distribution_is_spelt_as_the_definition_says(two):
    (ours, theirs), paired, spelling = two
    first_of = {token: {pieces[0]: 1} for token, pieces in spelling.pieces.items()}
    for document, groups in zip(paired.documents, paired.groups, strict=True):
        for a, _, there, c, _ in groups.tolist():
            of_token, said = first_of[int(paired.of_teacher[there].input_ids[c])], int(document.input_ids[a])
            of_token[said] = of_token.get(said, 0) + 1
    batch = paired_batch(paired, range(len(paired.documents)), spelling)
    places = batch.places
    torch.manual_seed(0)
    p = torch.softmax(3 * torch.randn(len(places.ours), len(theirs)), -1)
    q = torch.softmax(torch.randn(len(places.ours), len(ours)), -1)
    found = spelling.spelt(p, places, q)
    torch.testing.assert_close(found.sum(-1), torch.ones(len(found)))
    of_key = {key: begun for begun, key in spelling.begun.items()}
    inner = [row for row, key in enumerate(places.key.tolist()) if key != FIRST]
    assert len(inner) > 10 and len(inner) < len(found)
    for row in [*range(0, len(found), 7), *inner]:
        begun = of_key.get(int(places.key[row]))
        wanted = written_out(
            p[row].tolist(), q[row].tolist(), spelling, first_of, (int(places.said[row]), int(places.taught[row]), begun)
        )
        dense = torch.zeros(found.shape[1])
        for v, mass in wanted.items():
            dense[v] = mass
        torch.testing.assert_close(found[row], dense, rtol=1e-4, atol=1e-6)
    assert (batch.labels[places.ours] == places.said).all()


def test_every_token_is_spelt_by_its_bytes_parts_of_characters_too(two):
    (ours, theirs), _, spelling = two
    mine, other = TokenBytes.of(ours), TokenBytes.of(theirs)
    assert set(spelling.pieces) >= {token for token in other.bytes if token not in other.special and other.bytes[token]}
    for token, pieces in spelling.pieces.items():
        if token not in other.special:
            assert b"".join(mine.bytes[piece] for piece in pieces) == other.bytes[token]
    assert any(len(pieces) > 1 for pieces in spelling.pieces.values())


def test_the_teachers_probability_of_a_text_is_kept(two):
    """Along a group the spelt probabilities multiply to the teacher's where the student writes its first token as one or
    more."""
    (ours, theirs), paired, spelling = two
    batch = paired_batch(paired, range(len(paired.documents)), spelling)
    places = batch.places
    torch.manual_seed(1)
    p = torch.softmax(torch.randn(len(places.ours), len(theirs)), -1)
    p = p[torch.unique(places.theirs, return_inverse=True)[1]]  # one distribution for each position of the teacher
    spelt = spelling.spelt(p, places, torch.rand(len(p), len(ours))).gather(1, places.said[:, None])[:, 0]
    checked, begins = 0, np.cumsum([0, *map(len, paired.documents)])
    for a, b, c, d in [
        (a + begin - 1, b + begin - 1, c, d)
        for begin, groups in zip(begins, paired.groups, strict=False)
        for a, b, _, c, d in groups.tolist()
    ]:
        rows = [row for row, at in enumerate(places.ours.tolist()) if a <= at <= b]
        if c != d or len(rows) != b - a + 1 or b == a:
            continue
        product = float(spelt[rows].prod())
        assert (
            product >= float(p[rows[0], places.taught[rows[0]]]) * 0.999
        )  # M adds texts that begin alike, and takes none away
        checked += 1
    assert checked > 5


@pytest.mark.parametrize(("beta", "temperature", "label_weight"), [(0.0, 1.0, 0.0), (0.5, 2.0, 0.3)])
def test_with_one_tokenizer_it_is_ordinary_distillation(two, tmp_path, beta, temperature, label_weight):
    (_, tokenizer), _, _ = two
    write_rows(tmp_path, "train", [conversation(number) for number in range(4)])
    paired = read_paired(tmp_path, "train", tokenizer, tokenizer, 256)
    teacher, student = (random_model(layers=1, vocab_size=len(tokenizer), seed=seed) for seed in (1, 2))
    for model in (student, teacher):
        model.set_attn_implementation("packed")
    student.requires_grad_(True)
    spelling = Spelling.of(tokenizer, tokenizer, paired, (len(tokenizer), len(tokenizer)))
    assert all(pieces == (token,) for token, pieces in spelling.pieces.items())
    wanted = Divergence(temperature, label_weight, beta)
    batch = paired_batch(paired, range(4), spelling)
    ours = spelt_distillation_loss(teacher, spelling, wanted)(student, batch).terms["loss"]
    [plain] = to_batches(paired.documents, 10_000)
    theirs = distillation_loss(teacher, wanted)(student, plain).terms["loss"]
    assert float(ours.count) == float(theirs.count) == len(batch.places.ours)
    torch.testing.assert_close(ours.sum, theirs.sum, rtol=1e-4, atol=1e-4)
    parameters = list(student.parameters())
    for one, other in zip(torch.autograd.grad(ours.sum, parameters), torch.autograd.grad(theirs.sum, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_reverse_divergence_is_refused_since_some_tokens_of_the_student_spell_nothing(two):
    (ours, _), _, spelling = two
    assert len(torch.unique(spelling.tree.student)) < len(ours)
    with pytest.raises(ValueError, match=r"beta is 1.*set beta below 1"):
        StudentSettings(base="/models/other", across_tokenizers="spelling", beta=1)
    for given in ({"across_tokenizers": "spelling", "beta": 0.9}, {"beta": 1}):
        assert StudentSettings(base="/models/other", **given).resolved().beta == given["beta"]


def test_the_teachers_next_tokens_say_which_longer_token_of_the_student_it_is(two):
    """The loss along the paths, and its gradient, by loops over the training rows' groups."""
    (ours, theirs), paired, spelling = two
    tree, batch = spelling.tree, paired_batch(paired, range(len(paired.documents)), spelling)
    places = batch.places
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(len(places.ours), len(ours), generator=generator, dtype=torch.float64).requires_grad_(True)
    q = torch.softmax(logits, -1)
    p = torch.softmax(torch.randn(len(places.paths.place), len(theirs), generator=generator, dtype=torch.float64), -1)
    assert len(places.paths.place) > 20
    losses, gradient = tree.going_on(q.detach(), p, places.paths, places.said)

    def z(node, row):
        begin, end = tree.ends[node].item(), tree.ends[node + 1].item()
        return (q[row, tree.student[begin:end]] * tree.share[begin:end]).sum()

    wanted = torch.zeros(len(q), dtype=torch.float64)
    for step, (row, node, child) in enumerate(
        zip(places.paths.place.tolist(), places.paths.node.tolist(), places.paths.child.tolist(), strict=True)
    ):
        children = list(range(tree.child_ends[node].item(), tree.child_ends[node + 1].item()))
        masses = torch.stack([z(int(tree.child_node[each]), row) for each in children])
        taught = p[step, tree.child_token[children]].clone()
        taught[[int(tree.child_node[each]) for each in children].index(child)] += 1 - taught.sum()
        added = (taught * (taught.log() - (masses / masses.sum()).log())).sum()
        wanted = wanted + torch.nn.functional.one_hot(torch.tensor(row), len(q)) * added
    for row, last in enumerate(places.paths.last.tolist()):
        if last >= 0:
            begin, end = tree.ends[last].item(), tree.ends[last + 1].item()
            at = (tree.student[begin:end] == places.said[row]).nonzero()
            if len(at):
                own = q[row, places.said[row]] * tree.share[begin + int(at[0])]
                wanted = wanted - torch.nn.functional.one_hot(torch.tensor(row), len(q)) * (own / z(last, row)).log()
    torch.testing.assert_close(losses, wanted.detach(), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted.sum(), logits)[0], rtol=1e-5, atol=1e-8)
    part = slice(5, len(q) // 2)
    some, _ = tree.going_on(
        q[part].detach(),
        p[[5 <= row < len(q) // 2 for row in places.paths.place.tolist()]],
        places.paths.part(part),
        places.said[part],
    )
    torch.testing.assert_close(some, losses[part])


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


@pytest.mark.parametrize("template", [None, OTHER_TEMPLATE])
def test_groups_of_rendered_rows_say_the_same(tiny_model, tmp_path, template):
    turns = [
        [*conversation(1), {"role": "user", "content": "naïve ✓?"}, {"role": "assistant", "content": "größer ✓ 1+1"}],
        conversation(2),
    ]
    write_rows(tmp_path / "rows", "train", turns)
    other_model(tmp_path / "other", template)
    ours, theirs = load_tokenizer(tmp_path / "other"), load_tokenizer(tiny_model)
    paired = read_paired(tmp_path / "rows", "train", ours, theirs, 256)
    assert paired.counts["aligned_tokens"] == paired.counts["target_tokens"] > 20
    assert max(b - a for groups in paired.groups for a, b, *_ in groups.tolist()) > 0
    said = ""
    for document, groups in zip(paired.documents, paired.groups, strict=True):
        for a, b, there, c, d in groups.tolist():
            mine, other = (
                tokenizer.convert_ids_to_tokens(list(map(int, ids)))
                for tokenizer, ids in (
                    (ours, document.input_ids[a : b + 1]),
                    (theirs, paired.of_teacher[there].input_ids[c : d + 1]),
                )
            )
            assert "".join(mine) == "".join(other)
            said += "".join(mine)
    answers = [turn["content"] for row in turns for turn in row if turn["role"] == "assistant"]
    assert theirs.convert_tokens_to_string([said]) == "".join(answer + "<|im_end|>" for answer in answers)


def test_a_student_of_another_tokenizer_learns_and_keeps_its_tokenizer(tiny_model, chats, tmp_path):
    other_model(tmp_path / "other", OTHER_TEMPLATE)
    job = Job(
        operation="distill",
        output=tmp_path / "out",
        inputs={"teacher": tiny_model, "dataset": chats},
        settings={**SETTINGS, "base": str(tmp_path / "other"), "across_tokenizers": "spelling"},
    )
    metrics = distill.run(job, Progress())
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["kl"] < lines[0]["kl"] and lines[0]["aligned"] > 0.7
    assert metrics["aligned_tokens"] == metrics["target_tokens"]
    assert json.loads(json.dumps(metrics)) == metrics  # they travel to Dagster as JSON
    kept = load_tokenizer(tmp_path / "out")
    assert kept.get_vocab() == load_tokenizer(tmp_path / "other").get_vocab() != load_tokenizer(tiny_model).get_vocab()
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == OTHER_TEMPLATE
    without = Job(
        operation="distill",
        output=tmp_path / "again",
        inputs={"teacher": tiny_model, "dataset": chats},
        settings={**SETTINGS, "base": str(tmp_path / "other")},
    )
    with pytest.raises(ModelError, match=r"another tokenizer or chat template than the teacher .*across_tokenizers: spelling"):
        distill.run(without, Progress())


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"mesh": {"dp_shard": 2}}, "mesh"),
        ({"teacher": "cache"}, "teacher"),
        ({"overflow": "split"}, "overflow"),
        ({"on_policy": {"share": 0.5}}, r"on_policy\.share"),
        ({"base": None}, "across_tokenizers is given"),
    ],
)
def test_what_does_not_work_across_tokenizers_is_refused(given, named):
    with pytest.raises(ValueError, match=named):
        StudentSettings(**{"base": "/models/other", "across_tokenizers": "spelling", **given})
