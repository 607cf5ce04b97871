"""A teacher behind a fake endpoint that misbehaves: what is asked, paid, kept, retried, left out and refused."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loopback import loopback
from pydantic import ValidationError

from model_ops.files.columns import bare
from resources.composing.datasets import SFT_ROWS
from resources.composing.teachers.answer_store import AnswerStore, StoredAnswer, request_key
from resources.composing.teachers.endpoint_answers import TeacherError
from resources.composing.teachers.settings import TeacherSettings
from resources.composing.teachers.teacher_answers import build_teacher_answers

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("teacher answers")]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("model_ops.completions.endpoint.FIRST_PAUSE_S", 0.001)


def completion(text, reason="stop", prompt=10, answer=5, **message):
    return {
        "choices": [{"message": {"role": "assistant", "content": text, **message}, "finish_reason": reason}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": answer},
    }


def echo(body, number):
    return 200, completion("teacher: " + body["messages"][-1]["content"])


def row(name, messages, split="train", **more):
    return {
        "row_id": name,
        "origin": "interaction",
        "source": "gateway",
        "session_id": f"s-{name}",
        "workload": "tutor",
        "messages": json.dumps(messages),
        "interaction_ids": [f"i-{name}"],
        "prompt_shape": "one",
        **more,
    }


def asks(name, question, **more):
    return row(
        name,
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": question},
            {"role": "assistant", "content": "logged", "weight": 1},
        ],
        **more,
    )


def dataset_of(folder, rows, **splits):
    folder.mkdir(parents=True, exist_ok=True)
    for split, found in {"train": rows, "validation": rows[:1], "test": rows[:1], **splits}.items():
        filled = [{name: each.get(name) for name in SFT_ROWS.names} for each in found]
        pq.write_table(pa.Table.from_pylist(filled, schema=SFT_ROWS), folder / f"{split}.parquet")
    (folder / "rendering.json").write_text("{}")
    return folder


class Built:
    """One build against `answer`: its rows, what became of them, the report and the requests."""

    def __init__(self, home: Path, rows, answer, error=False, kept="kept.jsonl", asked=None, **settings):
        dataset = dataset_of(home / "sft", rows)
        with loopback(answer) as (address, seen), AnswerStore(home / kept) as answers:
            self.settings = TeacherSettings(
                **{
                    "base_url": f"{address}/v1",
                    "model": "big",
                    "licence": "apache-2.0",
                    "retries": 3,
                    "concurrency": 4,
                    "timeout_s": 5,
                    **settings,
                }
            )
            self.said = ""
            try:
                self.report = build_teacher_answers(dataset, home / "out", self.settings, answers, prompts=asked)
            except TeacherError as refused:
                assert error, refused
                self.said = str(refused)
            self.seen = seen
        assert bool(self.said) == error
        if not error:
            self.rows = pq.read_table(home / "out" / "train.parquet").to_pylist()
            told = pq.read_table(home / "out" / "requests.parquet")
            assert told.schema.equals(bare(told.schema), check_metadata=True), "files hold no sentences of columns"
            self.told = told.to_pylist()

    @property
    def said_last(self):
        return {each["row_id"]: json.loads(each["messages"])[-1]["content"] for each in self.rows if each["text"] is None}


def test_the_last_answer_is_the_teachers_and_alone_is_learnt(tmp_path):
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
    rows = [
        asks("a", "one"),
        row(
            "b",
            [
                {"role": "user", "content": "first"},
                {"role": "assistant", "content": "old", "weight": 1, "reasoning_content": "hm", "tool_calls": calls},
                {"role": "tool", "tool_call_id": "c1", "content": "2"},
                {"role": "user", "content": "second"},
                {"role": "assistant", "content": "logged", "weight": 1},
            ],
            tools=json.dumps([{"type": "function", "function": {"name": "add"}}]),
            request=json.dumps({"response_format": {"type": "json_object"}, "documents": []}),
        ),
        {**row("c", []), "text": "plain text"},
    ]
    built = Built(tmp_path, rows, echo, temperature=0.3, request={"seed": 7})
    assert built.said_last["a"] == "teacher: one" and [each["row_id"] for each in built.rows] == ["a", "b", "c"]
    messages = json.loads(built.rows[1]["messages"])
    assert [(said["role"], said.get("weight")) for said in messages] == [
        ("user", None),
        ("assistant", 0),
        ("tool", None),
        ("user", None),
        ("assistant", 1),
    ]
    assert messages[-1]["content"] == "teacher: second" and built.rows[1]["interaction_ids"] == ["i-b"]
    assert built.rows[2]["text"] == "plain text" and built.report.as_metrics()["kept_as_they_are"] == 1
    [body] = [request["body"] for request in built.seen if "tools" in request["body"]]
    assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert all(said.keys() <= {"role", "content", "tool_calls", "tool_call_id"} for said in body["messages"])
    assert (body["model"], body["temperature"], body["seed"], body["max_tokens"]) == ("big", 0.3, 7, 2048)
    assert body["response_format"] == {"type": "json_object"} and "documents" not in body
    assert (tmp_path / "out" / "test.parquet").read_bytes() == (tmp_path / "sft" / "test.parquet").read_bytes()
    assert {told["row_id"]: (told["kept"], told["interaction_ids"]) for told in built.told} == {
        "a": (True, ["i-a"]),
        "b": (True, ["i-b"]),
    }


def test_a_later_run_asks_for_nothing_again_and_equal_prompts_are_asked_once(tmp_path):
    rows = [asks(f"r{number}", f"q{number % 5}") for number in range(8)]
    price = {"price": {"input": 1.0, "output": 2.0}}
    first = Built(tmp_path, rows, echo, **price)
    assert len(first.seen) == 5 and first.report.answered == 8 and first.report.reused == 0
    assert first.report.cost == pytest.approx(5 * (10 * 1 + 5 * 2) / 1e6)
    again = Built(tmp_path, [*rows, asks("new", "another")], echo, **price)
    assert len(again.seen) == 1 and again.report.reused == 8 and again.report.cost == pytest.approx(6 * 20 / 1e6)
    assert again.said_last.items() >= first.said_last.items()
    other = Built(tmp_path, rows, echo, temperature=0.2)
    assert len(other.seen) == 5


def test_what_names_an_answer():
    base = ("m", [{"role": "user", "content": "a"}], None, {"temperature": 0.1})
    others = [
        ("n", *base[1:]),
        (base[0], [{"role": "user", "content": "b"}], *base[2:]),
        (*base[:2], [{"x": 1}], base[3]),
        (*base[:3], {"temperature": 0.2}),
        (*base, 1),
    ]
    keys = {request_key(*base), *(request_key(*other) for other in others)}
    assert len(keys) == 6 and request_key(*base) == request_key(*base, 0)


@pytest.mark.parametrize(("kind", "reply"), [("busy", (429, {})), ("not JSON", (200, '{"choices": [{"mess'))])
def test_an_endpoint_that_stays_bad_ends_the_stage_with_the_kind_and_leaves_nothing_half_written(tmp_path, kind, reply):
    built = Built(
        tmp_path,
        [asks(f"r{number}", f"q{number}") for number in range(12)],
        lambda body, number: reply,
        error=True,
        concurrency=2,
        retries=1,
    )
    assert "does not answer" in built.said and kind in built.said and "\n" not in built.said
    assert not list((tmp_path / "out").glob("*.parquet")) and (tmp_path / "kept.jsonl").read_bytes() == b""
    assert len(built.seen) < 24  # it gives up before every row was tried


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (completion("half a sen", "length"), "cut by max_tokens"),
        ({"choices": [], "usage": {"completion_tokens": 3}}, "no choices"),
    ],
)
def test_an_answer_that_cannot_be_used_is_left_out_counted_and_not_paid_twice(tmp_path, reply, failure):
    def answer(body, number):
        return (200, reply) if body["messages"][-1]["content"] == "bad" else echo(body, number)

    rows = [asks(f"r{number}", f"q{number}") for number in range(9)] + [asks("bad", "bad")]
    for asked in (10, 0):
        built = Built(tmp_path, rows, answer)
        assert len(built.seen) == asked and built.report.failed_rows == {failure: 1} and len(built.rows) == 9
    [told] = [told for told in built.told if not told["kept"]]
    assert told["failure"] == failure and told["interaction_ids"] == ["i-bad"]
    strict = Built(tmp_path, rows, answer, error=True, most_failed=0.05)
    assert f"1 of 10 rows have no usable answer (1 {failure})" in strict.said and not strict.seen


def test_a_key_is_sent_and_is_in_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "sesame-1")
    built = Built(tmp_path, [asks("a", "q")], echo, api_key_env="TEACHER_KEY")
    assert built.seen[0]["headers"]["Authorization"] == "Bearer sesame-1"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 4 and b"sesame-1" not in b"".join(path.read_bytes() for path in files)


def test_max_cost_is_not_passed_and_what_was_paid_is_kept(tmp_path):
    rows = [asks(f"r{number}", f"q{number}") for number in range(200)]
    paid = {"price": {"input": 0, "output": 1e6}, "max_tokens": 10, "max_cost": 101}  # 1 a token: 10 at most, 7 in fact

    def seven(body, number):
        return 200, completion("ok", answer=7)

    built = Built(tmp_path, rows, seven, error=True, **paid)
    assert len(built.seen) == 14 and "could pass max_cost (101): 98 is spent, and all answers are kept" in built.said
    again = Built(tmp_path, rows, seven, error=True, **paid)
    assert again.seen == []  # what earlier runs spent on the same rows counts
    richer = Built(tmp_path, rows, seven, **{**paid, "max_cost": 1_500})
    assert len(richer.seen) == 186 and richer.report.cost == 1_400


def test_an_answer_without_usage_counts_at_its_most(tmp_path):
    built = Built(
        tmp_path,
        [asks("a", "q")],
        lambda body, number: (200, {"choices": completion("x" * 50)["choices"]}),
        price={"input": 0, "output": 1e6},
    )
    assert built.report.answers_without_usage == 1 and 50 <= built.report.cost <= 150


def test_a_line_that_a_kill_cut_is_asked_for_again_and_no_other(tmp_path):
    rows = [asks(f"r{number}", f"q{number}") for number in range(6)]
    Built(tmp_path, rows, echo)
    content = (tmp_path / "kept.jsonl").read_bytes()
    (tmp_path / "kept.jsonl").write_bytes(content[:-30])
    built = Built(tmp_path, rows, echo)
    assert len(built.seen) == 1 and built.report.reused == 5


def test_the_first_answer_to_a_request_stays_and_its_cost_counts_once(tmp_path):
    with AnswerStore(tmp_path / "kept.jsonl") as store:
        store.keep_all((name, StoredAnswer("m", {"content": name}, "", "stop", 1, 1, 0.5)) for name in ("a", "b", "c"))
        store.keep("a", StoredAnswer("other", None, "cut", "", 0, 0, 9.0))
        assert store.find("a").model == "m" and store.find("d") is None
        assert store.cost_of(["a", "b", "a", "unknown"]) == 1.0


def test_max_rows_asks_for_that_many_and_the_same_ones(tmp_path):
    rows = [asks(f"r{number}", f"q{number}") for number in range(30)]
    built = Built(tmp_path, rows, echo, max_rows=7)
    assert len(built.seen) == len(built.rows) == 7 and built.report.beyond_max_rows == 23
    assert Built(tmp_path, rows, echo, max_rows=12, kept="kept.jsonl").report.reused == 7


def with_logprobs(body, number):
    said = "teacher: " + body["messages"][-1]["content"]
    content = [
        {
            "token": word,
            "bytes": list(word.encode()),
            "logprob": -0.25,
            "top_logprobs": [
                {"token": word, "bytes": list(word.encode()), "logprob": -0.25},
                {"token": "other", "bytes": None, "logprob": -9999.0},
                {"token": "é", "bytes": list("é".encode()), "logprob": -2.5},
            ],
        }
        for word in said.split()
    ]
    reply = completion(said)
    reply["choices"][0]["logprobs"] = {"content": content}
    return 200, reply


def test_log_probabilities_come_with_the_answers_and_are_asked_for_once(tmp_path):
    rows = [asks("a", "one two"), asks("b", "three"), {**row("c", []), "text": "plain"}]
    Built(tmp_path, rows, echo)
    for asked in (2, 0):  # a text that was kept without them is asked for again
        built = Built(tmp_path, rows, with_logprobs, logprobs=3)
        assert len(built.seen) == asked and built.report.answers_with_logprobs == 2
    found = {each["row_id"]: each for each in pq.read_table(tmp_path / "out" / "logprobs.parquet").to_pylist()}
    assert list(found) == ["a", "b"] and found["a"]["prompt_tokens"] == 10
    assert [found["a"]["tokens"][place] for place in found["a"]["said"]] == [b"teacher:", b"one", b"two"]
    assert found["a"]["counts"] == [2, 2, 2] and found["a"]["logs"] == [-0.25, -2.5] * 3
    assert not (tmp_path / "out" / ".work").exists()


def test_an_endpoint_without_log_probabilities_is_named_in_one_sentence(tmp_path):
    built = Built(tmp_path, [asks("a", "q")], echo, error=True, logprobs=20)
    assert "gave an answer without log-probabilities" in built.said and "leave teacher.logprobs out" in built.said
    assert (built.seen[0]["body"]["logprobs"], built.seen[0]["body"]["top_logprobs"]) == (True, 20)


@pytest.mark.parametrize(("values", "said"), [
    ({"request": {"top_logprobs": 5}}, "request holds top_logprobs, which millrace sets itself"),
    ({"max_cost": 3}, "price is not, so no cost can be counted"),
    ({"licence": ""}, "at least 1 character"),
    ({"request": {"messages": []}}, "request holds messages, which millrace sets itself"),
    ({"api_key_env": "sk-1234"}, "not the name of an environment variable"),
    ({"base_url": "localhost:1"}, "a server's address begins with"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(values, said):
    with pytest.raises(ValidationError, match=said):
        TeacherSettings(**{"base_url": "http://localhost:1/v1", "model": "m", "licence": "mit", **values})


def test_what_cannot_change_an_answer_changes_no_version():
    plain = TeacherSettings(base_url="http://localhost:1/v1", model="m", licence="mit")
    price = {"input": 1, "output": 1}
    faster = TeacherSettings(
        **{
            **plain.model_dump(),
            "concurrency": 3,
            "retries": 1,
            "price": price,
            "max_cost": 2,
            "requests_per_minute": 5,
            "timeout_s": 9,
            "api_key_env": "K",
        }
    )
    assert plain.counted() == faster.counted()
    assert plain.counted() != TeacherSettings(**{**plain.model_dump(), "temperature": 0.1}).counted()
