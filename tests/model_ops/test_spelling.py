"""A teacher's distribution in a student's tokens: as written out token by token, and that of one tokenizer where there is one."""

import heapq
import inspect
import textwrap

import pytest
import torch
from tiny_chats import conversation, write_rows
from tiny_models import tiny_model as random_model

from model_ops.objectives.distillation import Divergence, distillation_loss
from model_ops.objectives.paired_batches import paired_batch
from model_ops.objectives.spelling import FIRST, Spelling
from model_ops.objectives.spelt_distillation import spelt_distillation_loss
from model_ops.operations.distill_settings import StudentSettings
from model_ops.operations.tiny_base import train_tokenizer
from model_ops.operations.tiny_base_settings import TinyBaseSettings
from model_ops.rendering.token_bytes import TokenBytes
from model_ops.training.packing import to_batches
from model_ops.training.paired_chats import read_paired


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Tokenizers of different vocabularies (the student's first), rows of both, and their spelling."""
    folder = tmp_path_factory.mktemp("spelling")
    texts = [inspect.getsource(module).split("class ")[0] for module in (textwrap, heapq)]
    tokenizers = [train_tokenizer(found, TinyBaseSettings(vocab_size=size))
                  for found, size in ((texts[:1], 600), (texts, 1_000))]
    answers = ["naïve ✓ größer 1+1", *texts[1].split("\n\n")[:20]]
    write_rows(folder, "train", [[*conversation(number), {"role": "user", "content": "and?"},
                                  {"role": "assistant", "content": answer}] for number, answer in enumerate(answers)])
    paired = read_paired(folder, "train", *tokenizers, 256)
    return tokenizers, paired, Spelling.of(*tokenizers, paired, tuple(map(len, tokenizers)))


def written_out(p, spelling, first_of, place):
    """P as the module defines it, by loops. first_of: teacher's token -> student's token -> count over groups and spellings."""
    said, taught, begun = place
    found = {}
    for token, pieces in spelling.pieces.items():
        if begun is None:
            counts = {said: 1} if token == taught else first_of[token]
            for v, count in counts.items():
                found[v] = found.get(v, 0) + p[token] * count / sum(counts.values())
        elif len(pieces) > len(begun) and pieces[:len(begun)] == begun:
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
    found = spelling.spelt(p, places, len(ours))
    torch.testing.assert_close(found.sum(-1), torch.ones(len(found)))
    of_key = {key: begun for begun, key in spelling.begun.items()}
    inner = [row for row, key in enumerate(places.key.tolist()) if key != FIRST]
    assert len(inner) > 10 and len(inner) < len(found)
    for row in [*range(0, len(found), 7), *inner]:
        begun = of_key.get(int(places.key[row]))
        wanted = written_out(p[row].tolist(), spelling, first_of, (
            int(places.said[row]), int(places.taught[row]), begun))
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
    """Along a group the spelt probabilities multiply to the teacher's where the student writes its first token as one or more."""
    (ours, theirs), paired, spelling = two
    batch = paired_batch(paired, range(len(paired.documents)), spelling)
    places = batch.places
    torch.manual_seed(1)
    p = torch.softmax(torch.randn(len(places.ours), len(theirs)), -1)
    p = p[torch.unique(places.theirs, return_inverse=True)[1]]  # one distribution for each position of the teacher
    spelt = spelling.spelt(p, places, len(ours)).gather(1, places.said[:, None])[:, 0]
    checked = 0
    for a, b, c, d in batch.groups.tolist():
        rows = [row for row, at in enumerate(places.ours.tolist()) if a <= at <= b]
        if c != d or len(rows) != b - a + 1 or b == a:
            continue
        product = float(spelt[rows].prod())
        assert product >= float(p[rows[0], places.taught[rows[0]]]) * 0.999  # M adds texts that begin alike, and takes none away
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
    assert len(torch.unique(spelling.student)) < len(ours)
    with pytest.raises(ValueError, match=r"beta is 1.*set beta below 1"):
        StudentSettings(base="/models/other", across_tokenizers="spelling", beta=1)
    for given in ({"across_tokenizers": "spelling", "beta": 0.9}, {"across_tokenizers": "gold", "beta": 1}, {"beta": 1}):
        assert StudentSettings(base="/models/other", **given).resolved().beta == given["beta"]
