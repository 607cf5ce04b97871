"""A student that learns an endpoint's log-probabilities: its loss and gradients are those of the teacher in process over the
same tokens and a bucket for the rest; tokens are the endpoint's own; what does not map falls back to the label, or is
refused."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tiny_models import run_job, write_target

from model_ops.documents.documents import to_batch
from model_ops.jobs import ModelError
from model_ops.models.model_directory import load_model, load_tokenizer
from model_ops.objectives.distillation import Divergence, distillation_loss
from model_ops.objectives.teacher_cache import with_tail, write_reported
from model_ops.operations import distill
from model_ops.operations.distill_settings import StudentSettings
from model_ops.rendering.chat_template import ChatTemplate
from model_ops.rendering.endpoint_tokens import PADDED, EndpointTokens, TokenBytes
from model_ops.rendering.row import Row
from model_ops.rendering.tokens import TurnEncoder, TurnTokens
from model_ops.tensors.batch import IGNORED
from resources.composing.dataset_schemas import LOGPROBS
from resources.composing.teachers.token_logs import TokenLogs, read_token_logs

QUESTIONS = {"a": "add", "b": "print hello", "c": "return a + b"}
ANSWERS = {"a": "def add(a, b):", "b": "print('hello world')", "c": "a + b é"}
LIKELY = 5


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("told")
    write_target(root / "teacher", layers=4)
    return root


def rows():
    return [
        {
            "row_id": name,
            "tools": None,
            "messages": json.dumps(
                [{"role": "user", "content": QUESTIONS[name]}, {"role": "assistant", "content": ANSWERS[name], "weight": 1}]
            ),
        }
        for name in QUESTIONS
    ]


def endpoint_choice(teacher, tokenizer, name, likely=LIKELY, rewrite=None):
    """What an OpenAI-compatible server tells about an answer: computed from the teacher itself, one token after another. The
    answer is tokenized byte by byte, unlike the tokenizer would."""
    of_bytes = TokenBytes.of(tokenizer).bytes
    spelt = {found: token for token, found in of_bytes.items() if len(found) == 1}
    answer = [spelt[bytes([byte])] for byte in ANSWERS[name].encode()]
    messages = [{"role": "user", "content": QUESTIONS[name]}]
    prompt = TurnEncoder(tokenizer).prompt(ChatTemplate.of(tokenizer).prompt(Row(name, messages), 1))
    with torch.no_grad():
        batch = torch.tensor([[*prompt, *answer]])
        log_p = torch.log_softmax(teacher(input_ids=batch).logits[0].float(), -1)[len(prompt) - 1 : -1, : len(tokenizer)]

    def entry(token, log):
        name = of_bytes[token]
        name = rewrite(name) if rewrite else name
        return {"token": name.decode("utf-8", "replace"), "bytes": list(name), "logprob": float(log)}

    content = []
    for token, logs in zip(answer, log_p, strict=True):
        top = logs.topk(likely)
        content.append(
            {
                **entry(token, logs[token]),
                "top_logprobs": [
                    entry(other, log) for other, log in zip(top.indices.tolist(), top.values.tolist(), strict=True)
                ],
            }
        )
    return {"message": {"content": ANSWERS[name]}, "logprobs": {"content": content}}, prompt, answer, log_p


def write_dataset(folder, teacher, tokenizer, **how):
    folder.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([(name, pa.string()) for name in ("row_id", "tools", "messages")])
    for split in ("train", "validation"):
        pq.write_table(pa.Table.from_pylist(rows(), schema=schema), folder / f"{split}.parquet")
    told = [
        {
            "row_id": name,
            "prompt_tokens": 1,
            **TokenLogs.unpacked(
                read_token_logs(endpoint_choice(teacher, tokenizer, name, **how)[0], LIKELY).packed()
            ).as_row(),
        }
        for name in QUESTIONS
    ]
    pq.write_table(pa.Table.from_pylist(told, schema=LOGPROBS), folder / "logprobs.parquet")
    return folder


def gradients(student, loss, batch):
    student.zero_grad()
    found = loss(student, batch).terms["loss"].sum
    found.backward()
    return found.item(), {name: value.grad.clone() for name, value in student.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_loss_and_gradients_are_those_of_the_teacher_in_process(place, tmp_path, beta):
    tokenizer = load_tokenizer(place / "teacher")
    teacher = load_model(place / "teacher", attention="sdpa")
    dataset = write_dataset(tmp_path / "data", teacher, tokenizer)
    chats, told = distill.read_reported(dataset, place / "teacher", StudentSettings(teacher="answers", steps=1).resolved())
    cache = write_reported(tmp_path / "told", chats.documents, told, len(tokenizer))
    by_row = {document.row_id: (index, document) for index, document in enumerate(chats.documents)}
    ended = len(QUESTIONS)  # the end of turn of each answer, which the endpoint leaves out
    assert told.label_tokens == ended and told.log_tokens == sum(len(said.encode()) for said in ANSWERS.values())
    write_target(place / "student", layers=4, seed=3)
    student = load_model(place / "student").requires_grad_(True)
    for name, (index, document) in by_row.items():
        _, prompt, answer, log_p = endpoint_choice(teacher, tokenizer, name)
        assert document.input_ids.tolist()[:-1] == prompt + answer  # the endpoint's own tokens
        batch = to_batch([cache.added_to(document, index)], cache.kind)
        found, grads = gradients(student, distillation_loss(None, Divergence(beta=beta)), batch)
        kept = (batch.labels != IGNORED).nonzero()[:, 0]
        log_q = torch.log_softmax(
            student(input_ids=batch.input_ids[None], use_cache=False, position_ids=batch.position_ids[None])
            .logits[0]
            .float()[kept],
            -1,
        )
        student.zero_grad()
        total = 0.0
        for place_, logs in enumerate(log_p):
            chosen = sorted({answer[place_], *logs.topk(LIKELY).indices.tolist()})
            p, q = with_tail(logs[chosen].half().float()[None]), with_tail(log_q[place_][chosen][None])
            total = total + expected(p, q, beta)
        end = batch.labels[kept][-1]
        p = torch.tensor([[0.0, math.log(1e-7)]])
        total = total + expected(p, with_tail(log_q[-1][end].reshape(1, 1)), beta)
        total.backward()
        assert found == pytest.approx(total.item(), rel=1e-4)
        for parameter, value in student.named_parameters():
            if parameter in grads:
                torch.testing.assert_close(grads[parameter], value.grad, rtol=2e-3, atol=2e-6)


def expected(log_p, log_q, beta):
    """The divergence by its definition, differentiable."""
    p, q = log_p.exp(), log_q.exp()
    if beta == 0:
        return (p * (log_p - log_q)).sum()
    if beta == 1:
        return (q * (log_q - log_p)).sum()
    log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log(1 - beta))
    return beta * (p * (log_p - log_m)).sum() + (1 - beta) * (q * (log_q - log_m)).sum()


def test_a_student_is_trained_and_says_what_fell_back(place, tmp_path):
    tokenizer, teacher = load_tokenizer(place / "teacher"), load_model(place / "teacher", attention="sdpa")
    dataset = write_dataset(tmp_path / "data", teacher, tokenizer)
    metrics = run_job(
        distill,
        tmp_path / "out",
        {"teacher": place / "teacher", "dataset": dataset},
        teacher="answers",
        layers=0.5,
        steps=30,
        tokens_per_step=256,
        max_length=128,
        learning_rate=3e-3,
        precision="float32",
    )
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    kl = [line["kl"] for line in lines if "kl" in line]
    assert kl[-1] < 0.5 * kl[0] and metrics["label_only_tokens"] == 3 and metrics["logprob_tokens"] > 30


def test_another_vocabulary_is_refused_and_a_dataset_without_logprobs(place, tmp_path):
    tokenizer, teacher = load_tokenizer(place / "teacher"), load_model(place / "teacher", attention="sdpa")
    dataset = write_dataset(tmp_path / "data", teacher, tokenizer, rewrite=lambda name: b"\xff" + name + b"\xfe\xff")
    with pytest.raises(
        ModelError, match=r"their tokenizers differ.*leave teacher.logprobs and student.teacher out.*student.label_weight to 1"
    ):
        distill.read_reported(dataset, place / "teacher", StudentSettings(teacher="answers", steps=1).resolved())
    (dataset / "logprobs.parquet").unlink()
    with pytest.raises(ModelError, match=r"set teacher.logprobs and materialize teacher_answers again"):
        distill.read_reported(dataset, place / "teacher", StudentSettings(teacher="answers", steps=1).resolved())


def test_an_alternative_that_does_not_map_joins_the_rest(place):
    tokenizer = load_tokenizer(place / "teacher")
    told = EndpointTokens(
        {
            "a": {
                "tokens": [b"d", b"\xff\xfe\xff", b"e", b"token_id:70"],
                "said": [0, 2],
                "counts": [3, 2],
                "likely": [0, 1, 3, 2, 1],
                "logs": [-0.5, -1.0, -2.0, -0.1, -3.0],
            }
        },
        {b"d": 10, b"e": 11},
        300,
    )
    rendered = TurnTokens(np.array([1]), np.array([10, 11, 5]))
    given = told.exact_of(Row("a", []), None, rendered, tokenizer)
    ids, logs = told.answers["a"]
    assert given.answer.tolist() == [10, 11, 5] and ids.tolist()[0][:2] == [10, 70]
    assert (
        logs[0].tolist() == [-0.5, -2.0, PADDED]
        and (logs[2] == PADDED).all()
        and (told.log_tokens, told.label_tokens) == (2, 1)
    )


def test_a_token_takes_at_most_200_bytes_in_the_cache(place):
    """The worst case: every alternative of every token is another one."""
    names = [f" word{number}" for number in range(4_000)]
    content = [
        {
            "token": names[20 * at],
            "bytes": list(names[20 * at].encode()),
            "logprob": -0.1,
            "top_logprobs": [
                {"token": name, "bytes": list(name.encode()), "logprob": -0.1 - 0.317 * place_}
                for place_, name in enumerate(names[20 * at : 20 * at + 20])
            ],
        }
        for at in range(200)
    ]
    logs = read_token_logs({"logprobs": {"content": content}}, 20)
    assert len(logs.packed()) / 200 < 200 and TokenLogs.unpacked(logs.packed()).said == logs.said
    assert read_token_logs({"logprobs": {"content": []}}, 20) is read_token_logs({"logprobs": None}, 20) is None
