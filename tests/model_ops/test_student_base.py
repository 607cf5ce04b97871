"""A student that begins as a model of its own: it reads the rows as its teacher does, whatever its padding."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tiny_models import run_job
from tiny_models import tiny_model as random_model
from torch.nn import functional as F

from model_ops.documents.likelihood import read_chats
from model_ops.jobs import Job, ModelError, Progress
from model_ops.losses.head import Head, chunked_head
from model_ops.models.model_directory import load_model, load_tokenizer, save_model
from model_ops.objectives.distillation import Divergence, distillation_rows
from model_ops.operations import distill
from model_ops.operations.distill_settings import StudentSettings
from model_ops.operations.quantize import quantize_directory

SETTINGS = {"steps": 8, "learning_rate": 1e-2, "tokens_per_step": 512, "max_length": 128}


def small(teacher, directory, padding=0, **changes):
    """A model with the teacher's tokenizer, two narrow layers, and some rows more in its embedding."""
    tokenizer = load_tokenizer(teacher)
    rows = json.loads((teacher / "config.json").read_text())["vocab_size"] + padding
    model = random_model(layers=2, vocab_size=rows, eos_token_id=tokenizer.eos_token_id, initializer_range=0.05, **changes)
    save_model(model, tokenizer, directory)
    return directory


@pytest.mark.parametrize(("padding", "teacher"), [(0, "online"), (24, "online"), (24, "cache")])
def test_a_student_of_its_own_learns_and_keeps_its_shape(tiny_model, chats, tmp_path, padding, teacher):
    base = small(tiny_model, tmp_path / "small", padding)
    metrics = run_job(
        distill,
        tmp_path / "out",
        {"teacher": tiny_model, "dataset": chats},
        **SETTINGS | {"base": str(base), "teacher": teacher},
    )
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["kl"] < lines[0]["kl"]
    found = load_model(tmp_path / "out")
    assert found.config.num_hidden_layers == 2 and found.config.hidden_size == 32
    assert found.get_input_embeddings().weight.shape[0] == load_model(base).get_input_embeddings().weight.shape[0]
    assert load_tokenizer(tmp_path / "out").get_vocab() == load_tokenizer(base).get_vocab()
    assert "teacher_layers" not in metrics


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("student_rows", [11, 16])
def test_padding_has_no_probability_in_the_teacher(beta, student_rows):
    torch.manual_seed(0)
    hidden, head = torch.randn(7, 8, requires_grad=True), torch.randn(student_rows, 8, requires_grad=True)
    taught, teacher_head = torch.randn(7, 6), torch.randn(13, 6)
    labels, weights, divergences = torch.randint(11, (7,)), torch.rand(7), torch.zeros(7)
    rows = distillation_rows(taught, Head(teacher_head), labels, weights, Divergence(beta=beta), divergences)
    total, _ = chunked_head(hidden, Head(head), rows, chunk_rows=3)
    shared = min(13, student_rows)
    p = torch.cat([torch.softmax(taught @ teacher_head[:shared].T, -1), torch.zeros(7, student_rows - shared)], -1)
    log_q = torch.log_softmax(hidden @ head.T, -1)
    log_p = p.log().clamp(min=-100)
    if beta == 0:
        values = F.kl_div(log_q, p, reduction="none").sum(-1)
    elif beta == 1:
        values = (log_q.exp() * (log_q - log_p)).sum(-1)
    else:
        middle = beta * p + (1 - beta) * log_q.exp()
        values = beta * F.kl_div(middle.log(), p, reduction="none").sum(-1) + (1 - beta) * (
            log_q.exp() * (log_q - middle.log())
        ).sum(-1)
    wanted = (values * weights).sum()
    torch.testing.assert_close(total, wanted)
    ours, theirs = torch.autograd.grad(total, (hidden, head)), torch.autograd.grad(wanted, (hidden, head))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_quantized_base_is_read(tiny_model, chats, tmp_path):
    base = small(tiny_model, tmp_path / "small")
    quantize_directory(base, tmp_path / "int8", Progress())
    run_job(
        distill,
        tmp_path / "out",
        {"teacher": tiny_model, "dataset": chats},
        **SETTINGS | {"base": str(tmp_path / "int8"), "steps": 1},
    )
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    assert load_model(tmp_path / "out").config.num_hidden_layers == 2


def exchange_last_tokens(model):
    """Two token ids of a model's vocabulary mean what the other one meant."""
    path = model / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.get)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(content))
    return vocabulary[first]


def test_another_vocabulary_and_another_template_are_refused(tiny_model, chats, tmp_path):
    exchanged = small(tiny_model, tmp_path / "exchanged")
    exchange_last_tokens(exchanged)
    rendered = small(tiny_model, tmp_path / "rendered")
    template = rendered / "chat_template.jinja"
    template.write_text(template.read_text().replace("'\\n'", "' \\n'").replace("\n' +", " \n' +") + " ")
    before = load_tokenizer(tiny_model).apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert load_tokenizer(rendered).apply_chat_template([{"role": "user", "content": "a"}], tokenize=False) != before
    for base, reason in ((exchanged, "is another token"), (rendered, "rendered as other tokens")):
        with pytest.raises(ModelError, match=rf"{reason}.*set student\.label_weight to 1 to learn answers instead"):
            run_job(distill, tmp_path / "out", {"teacher": tiny_model, "dataset": chats}, **SETTINGS | {"base": str(base)})


def test_a_student_with_another_tokenizer_learns_the_text_of_answers(tiny_model, chats, tmp_path):
    """Not the log's token ids, which are the teacher's even where both vocabularies write the prompt in the same way."""
    base, rows = small(tiny_model, tmp_path / "other"), tmp_path / "rows"
    another = exchange_last_tokens(base)
    shutil.copytree(chats, rows)
    table = pq.read_table(rows / "train.parquet")
    ids = pa.array([[f"i{i}"] for i in range(len(table))])
    pq.write_table(table.append_column("interaction_ids", ids), rows / "train.parquet")
    settings = StudentSettings(**SETTINGS, base=str(base), label_weight=1).resolved()
    plain = read_chats(rows, base, settings)
    first = plain.documents[0]
    start = int(first.targets.argmax())
    logged = {
        "interaction_id": "i0",
        "finish_reason": "stop",
        "prompt_token_ids": first.input_ids[:start].tolist(),
        "completion_token_ids": [another, int(first.input_ids[-1])],
    }
    (tmp_path / "served").mkdir()
    pq.write_table(pa.Table.from_pylist([logged]), tmp_path / "served/served.parquet")
    inputs = {"teacher": tiny_model, "dataset": rows, "served": tmp_path / "served"}
    job = Job(operation="distill", output=tmp_path / "out", inputs=inputs, settings=settings.model_dump())
    exact = read_chats(rows, base, settings, tmp_path / "served")
    assert exact.documents[0].input_ids.tolist() == [*logged["prompt_token_ids"], *logged["completion_token_ids"]]
    read = distill.as_the_base_reads(job, base, exact, settings)
    assert [each.input_ids.tolist() for each in read.documents] == [each.input_ids.tolist() for each in plain.documents]
    distill.run(job, Progress())
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert load_tokenizer(tmp_path / "out").get_vocab() == load_tokenizer(base).get_vocab()


def test_a_base_without_weights_is_refused(tiny_model, tmp_path, chats):
    base = small(tiny_model, tmp_path / "small")
    (base / "model.safetensors").unlink()
    job = Job(
        operation="distill",
        output=tmp_path / "out",
        inputs={"teacher": tiny_model, "dataset": chats},
        settings={**SETTINGS, "base": str(base)},
    )
    with pytest.raises(ModelError, match=r"no \.safetensors"):
        distill.run(job, Progress())
    shutil.rmtree(base)
    with pytest.raises(ModelError, match=r"config\.json"):
        distill.run(job, Progress())


@pytest.mark.parametrize("given", [{"layers": 2}, {"choose_layers": "even"}])
def test_layers_of_the_teacher_do_not_apply_to_a_base(given):
    with pytest.raises(ValueError, match="base are both given"):
        StudentSettings(base="/models/small", **given)


def test_missing_values_are_filled_and_read_again():
    plain, based = StudentSettings().resolved(), StudentSettings(base="/models/small").resolved()
    assert (plain.layers, plain.choose_layers, plain.depth(10)) == (0.7, "importance", 7)
    assert based.layers is None and StudentSettings(**based.model_dump()).resolved() == based
