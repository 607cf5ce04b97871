"""Rejection sampling: of several answers the best is learnt, wrong ones are recorded and give preference rows."""

import itertools
import json
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loopback import loopback
from pydantic import ValidationError

from model_ops.operations.sample_answers import SCHEMA
from resources.composing.teachers import endpoint_answers as client
from resources.composing.teachers.answer_store import AnswerStore, StoredAnswer
from resources.composing.teachers.endpoint_answers import TeacherError
from resources.composing.teachers.model_answers import PROMPTS, ModelTeacher
from resources.composing.teachers.settings import TeacherSettings, VerifySettings
from resources.composing.teachers.teacher_answers import build_teacher_answers
from resources.composing.teachers.verify import AnswerCandidate, Verifier, choose, rejected
from resources.curating.judge_endpoint import JudgeSettings
from tests.resources.composing.test_teacher_answers import Built, completion, dataset_of, row


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("model_ops.completions.endpoint.FIRST_PAUSE_S", 0.001)


def sums(name, question, logged, **more):
    return row(name, [{"role": "user", "content": question}, {"role": "assistant", "content": logged, "weight": 1}], **more)


def cycling(*texts):
    """Answers each question with these texts in turn."""
    places, lock = {}, threading.Lock()

    def answer(body, number):
        with lock:
            turn = places.setdefault(body["messages"][-1]["content"], itertools.count())
            return 200, completion(texts[next(turn) % len(texts)])

    return answer


def test_the_right_answer_is_learnt_and_wrong_ones_become_preferences(tmp_path):
    rows = [sums("a", "6 x 7?", "It is 42."), sums("b", "3 + 4?", "7"), sums("c", "hello", "hi")]
    built = Built(
        tmp_path, rows, cycling("so 41", "that makes 42", "I think 43", "so 41"), answers=4, verify={"kind": "number"}
    )
    assert len(built.seen) == 12 and {request["body"]["temperature"] for request in built.seen} == {0.7}
    assert built.said_last["a"] == "that makes 42" and "b" not in built.said_last  # no answer to b says 7
    assert "c" in built.said_last and built.report.unverifiable_rows == 1  # nothing to compare with: kept
    assert (built.report.answered, built.report.rejected_rows, built.report.rejected_answers) == (2, 1, 7)
    of_a = {told["sample"]: told for told in built.told if told["row_id"] == "a"}
    right = [told for told in of_a.values() if told["kept"]]
    assert len(of_a) == 4 and [told["score"] for told in right] == [1.0] and right[0]["failure"] is None
    assert all(
        told["failure"] == "score 0 is below 1" and told["interaction_ids"] == ["i-a"]
        for told in of_a.values()
        if not told["kept"]
    )
    assert [told["score"] for told in built.told if told["row_id"] == "c"] == [None] * 4
    found = pq.read_table(tmp_path / "out" / "preferences.parquet").to_pylist()
    assert [(pair["row_id"], json.loads(pair["chosen"])[0]["content"]) for pair in found] == [("a", "that makes 42")] * 2
    assert {json.loads(pair["rejected"])[0]["content"] for pair in found} == {"so 41", "I think 43"}  # equal ones once
    assert json.loads(found[0]["prompt"]) == [{"role": "user", "content": "6 x 7?"}]
    assert found[0]["interaction_ids"] == ["i-a"] and (found[0]["chosen_score"], found[0]["rejected_score"]) == (1.0, 0.0)
    assert built.report.preferences == 2


def test_more_answers_ask_for_the_missing_ones_only(tmp_path):
    rows = [sums("a", "6 x 7?", "42")]
    two = Built(tmp_path, rows, cycling("42"), answers=2, verify={"kind": "number"})
    five = Built(tmp_path, rows, cycling("42"), answers=5, verify={"kind": "number"})
    assert (len(two.seen), len(five.seen)) == (2, 3)


def test_rows_with_nothing_to_verify_can_be_dropped(tmp_path):
    rows = [sums("a", "6 x 7?", "42"), sums("c", "hello", "hi")]
    built = Built(tmp_path, rows, cycling("42"), answers=2, verify={"kind": "number", "unverifiable": "drop"})
    assert set(built.said_last) == {"a"}


def prompts_of(folder, **verifiers):
    """rl_prompts as they are made; the training prompt of a row is its name."""
    folder.mkdir()
    for split, names in (("train", verifiers), ("validation", {"held": {"kind": "number", "answer": "1"}})):
        rows = [
            {"row_id": f"task:{name}", "origin": "task", "source": "sums", "workload": "tutor", "interaction_ids": [f"i-{name}"],
             "messages": json.dumps([{"role": "user", "content": name}]), "tools": None, "verifier": json.dumps(verifier),
             "split": split, "weight": 1.0, "reason": "all", "content_sha256": name, "synthetic": False}
            for name, verifier in names.items()
        ]  # fmt: skip
        schema = pa.schema(
            [(name, pa.string()) for name in rows[0] if name not in ("interaction_ids", "weight", "synthetic")]
            + [("interaction_ids", pa.list_(pa.string())), ("weight", pa.float64()), ("synthetic", pa.bool_())]
        )
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / f"{split}.parquet")
    return folder


def test_the_best_right_answer_to_each_prompt_with_a_verifier_becomes_a_row_and_unsolved_ones_are_counted(tmp_path):
    asked = prompts_of(
        tmp_path / "rl",
        six={"kind": "number", "answer": "42"},
        yes={"kind": "regex", "pattern": "^yes"},
        hard={"kind": "number", "answer": "7"},
        logged={"grader": "of another system"},
    )
    sampled = {"prompts": "rl_prompts", "answers": 3, "verify": {"kind": "verifier"}}
    built = Built(tmp_path, [sums("a", "6 x 7?", "42")], cycling("so 41", "that makes 42", "yes, 42"), asked=asked, **sampled)
    assert {request["body"]["messages"][-1]["content"] for request in built.seen} == {"six", "yes", "hard", "logged"}
    assert set(built.said_last) == {"task:six", "task:yes"}, "neither what no answer solved nor what nothing verifies"
    assert built.said_last["task:yes"] == "yes, 42" and "42" in built.said_last["task:six"]
    assert (built.report.answered, built.report.rejected_rows, built.report.unverifiable_rows) == (2, 2, 1)
    [mine] = [row for row in built.rows if row["row_id"] == "task:six"]
    assert [said["role"] for said in json.loads(mine["messages"])] == ["user", "assistant"] and mine["synthetic"]
    assert mine["interaction_ids"] == ["i-six"] and mine["source"] == "sums" and mine["content_sha256"] != "six"
    kept = [told for told in built.told if told["kept"]]
    assert sorted(told["row_id"] for told in kept) == ["task:six", "task:yes"] and {told["score"] for told in kept} == {1.0}
    held = pq.read_table(tmp_path / "out" / "validation.parquet")["row_id"].to_pylist()
    assert held == ["a"], "held-out rows stay those of the conversations"
    pair = pq.read_table(tmp_path / "out" / "preferences.parquet").to_pylist()[0]
    assert json.loads(pair["prompt"]) == [{"role": "user", "content": pair["row_id"].removeprefix("task:")}]


@pytest.mark.parametrize(("settings", "said"), [
    ({"prompts": "rl_prompts"}, "have no logged answer, and verify.kind is left out: set it to verifier, regex or judge"),
    ({"prompts": "rl_prompts", "verify": {"kind": "number"}}, "have no logged answer, and verify.kind is number"),
    ({"verify": {"kind": "verifier"}}, "which only rows of rl_prompts bring: set prompts to rl_prompts"),
])  # fmt: skip
def test_a_verifier_and_prompts_that_do_not_go_together_are_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        TeacherSettings(base_url="http://localhost:1/v1", model="big", licence="mit", **settings)


def test_a_verifier_that_accepts_nothing_ends_the_stage(tmp_path):
    built = Built(tmp_path, [sums("a", "6 x 7?", "42")], cycling("41"), error=True, verify={"kind": "number"})
    assert "no answer to any of 1 row reached the least score 1" in built.said
    assert not list((tmp_path / "out").glob("*.parquet"))


VERIFIER_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CALLED = [{"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]


def calls(**arguments):
    return [{"id": "x", "type": "function", "function": {"name": "add", "arguments": json.dumps(arguments)}}]


@pytest.mark.parametrize(
    ("kind", "more", "logged", "request_", "right", "wrong"),
    [
        ("exact", {}, {"content": " Paris"}, None, {"content": "Paris "}, {"content": "It is Paris"}),
        ("regex", {"pattern": r"^yes\b"}, {"content": "x"}, None, {"content": "yes, sure"}, {"content": "oh yes"}),
        (
            "json_schema",
            {},
            {"content": "x"},
            {"response_format": {"type": "json_schema", "json_schema": {"schema": VERIFIER_SCHEMA}}},
            {"content": '{"n": 3}'},
            {"content": '{"n": "3"}'},
        ),
        (
            "function_call",
            {},
            {"content": "", "tool_calls": CALLED},
            None,
            {"content": "", "tool_calls": calls(b=2, a=1)},
            {"content": "", "tool_calls": calls(a=1, b=3)},
        ),
        (
            "function_call",
            {},
            {"content": "", "tool_calls": CALLED},
            None,
            {"content": "", "tool_calls": calls(a=1, b=2)},
            {"content": "I would add them."},
        ),
    ],
)
def test_each_kind_tells_right_from_wrong(tmp_path, kind, more, logged, request_, right, wrong):
    asked = row(
        "a",
        [{"role": "user", "content": "q"}, {"role": "assistant", "weight": 1, **logged}],
        request=request_ and json.dumps(request_),
    )
    asked = {"request": None, **asked}
    with AnswerStore(tmp_path / "kept.jsonl") as kept, Verifier(VerifySettings(kind=kind, **more), None, kept) as verifier:
        assert [verifier.score(asked, {"role": "assistant", **said}) for said in (right, wrong)] == [1.0, 0.0]
        empty = {**row("b", [{"role": "user", "content": "q"}, {"role": "assistant", "content": ""}]), "request": None}
        assert verifier.score(empty, {"role": "assistant", **right}) == (1.0 if kind == "regex" else None)


def test_a_judge_scores_once_and_its_best_is_learnt(tmp_path):
    dataset, judged = dataset_of(tmp_path / "sft", [sums("a", "q", "logged")]), []

    def judge(body, number):
        shown = body["messages"][1]["content"]
        judged.append(shown)
        quality = 9 if "great" in shown else 8 if "good" in shown else 3
        return 200, completion(json.dumps({"quality": quality, "difficulty": 2}))

    with (
        loopback(cycling("good", "great", "poor")) as (address, _),
        loopback(judge) as (bench, _),
        AnswerStore(tmp_path / "kept.jsonl") as kept,
    ):
        settings = TeacherSettings(base_url=f"{address}/v1", model="big", licence="mit", answers=3, verify={"kind": "judge"})
        for _ in range(2):
            report = build_teacher_answers(
                dataset, tmp_path / "out", settings, kept, judge=JudgeSettings(base_url=f"{bench}/v1", model="critic")
            )
    [learnt] = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert json.loads(learnt["messages"])[-1]["content"] == "great" and len(judged) == 3
    assert report.rejected_answers == 1 and report.preferences == 1
    told = pq.read_table(tmp_path / "out" / "requests.parquet").to_pylist()
    assert sorted(each["score"] for each in told) == [3, 8, 9]


def test_a_judge_that_does_not_answer_ends_the_stage_in_one_sentence(tmp_path):
    dataset = dataset_of(tmp_path / "sft", [sums("a", "q", "logged")])
    with (
        loopback(cycling("good")) as (address, seen),
        loopback(lambda body, number: (503, {})) as (bench, _),
        AnswerStore(tmp_path / "kept.jsonl") as kept,
    ):
        settings = TeacherSettings(base_url=f"{address}/v1", model="big", licence="mit", verify={"kind": "judge"})
        with pytest.raises(client.TeacherError, match=r"judge at \S+ does not answer \(HTTP 503\).*are kept"):
            build_teacher_answers(
                dataset,
                tmp_path / "out",
                settings,
                kept,
                judge=JudgeSettings(base_url=f"{bench}/v1", model="critic", retries=0),
            )
    assert len(seen) == 1 and not list((tmp_path / "out").glob("*.parquet"))


def candidates(*scores):
    return [
        AnswerCandidate(sample, f"k{sample}", StoredAnswer("m", {"content": str(sample)}, "", "stop", 1, 1, 0), score)
        for sample, score in enumerate(scores)
    ]


def test_ties_are_drawn_by_the_seed_and_evenly():
    settings, several = VerifySettings(kind="number"), candidates(1, 0, 1, 1)
    drawn = [choose(several, settings, seed, "a").sample for seed in range(300)]
    assert drawn == [choose(several, settings, seed, "a").sample for seed in range(300)]
    assert all(80 <= drawn.count(place) <= 120 for place in (0, 2, 3)) and 1 not in drawn


def test_only_the_best_at_or_above_the_least_score_is_kept():
    settings = VerifySettings(kind="judge", least_score=6)
    for scores, best in (((3, 6, 5.9), 1), ((3, 5.9), None), ((None, 6.5), 1)):  # scored ones come before unscored ones
        several = candidates(*scores)
        assert choose(several, settings, 0, "a") == (None if best is None else several[best])
    wrong, best, right = candidates(3, 9, 7)
    assert rejected([wrong, best, right], best, settings) == [wrong]  # 7 is good enough to be no example of a wrong answer
    unscored = candidates(None, None)
    assert rejected(candidates(3, 5), None, settings) == [] and rejected(unscored, unscored[0], settings) == []


@pytest.mark.parametrize(("values", "said"), [
    ({"answers": 3}, "nothing chooses among them"),
    ({"answers": 2, "temperature": 0, "verify": {"kind": "number"}}, "all would be"),
    ({"verify": {"kind": "regex"}}, "kind regex needs pattern"),
    ({"verify": {"kind": "number", "pattern": "a"}}, "no other kind"),
    ({"verify": {"kind": "regex", "pattern": "("}}, "no regular expression"),
    ({"verify": {"kind": "exact", "least_score": 7}}, "exact gives at most 1"),
])  # fmt: skip
def test_settings_that_contradict_each_other_are_refused(values, said):
    with pytest.raises(ValidationError, match=said):
        TeacherSettings(**{"base_url": "http://localhost:1/v1", "model": "m", "licence": "mit", **values})


class Worker:
    """Stands in for the worker: answers the n-th prompt of a question with the n-th text; None: a failure."""

    def __init__(self, *texts):
        self.texts, self.asked, self.settings = texts, [], None

    def run(self, prompts, output, settings):
        table = pq.read_table(prompts / "prompts.parquet")
        assert table.schema.equals(PROMPTS)
        rows, turn = [], {}
        for prompt in table.to_pylist():
            question = json.loads(prompt["messages"])[-1]["content"]
            number = turn[question] = turn.get(question, -1) + 1
            said = self.texts[number % len(self.texts)]
            rows.append(
                {
                    "key": prompt["key"],
                    "message": said and json.dumps({"role": "assistant", "content": said}),
                    "failure": "" if said else "cut by max_tokens",
                    "finish_reason": "stop" if said else "length",
                    "prompt_tokens": 5,
                    "answer_tokens": 3,
                }
            )
        self.asked.append(rows)
        self.settings = settings
        output.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), output / "answers.parquet")


def build(home, rows, worker, digest="d1", **settings):
    dataset = dataset_of(home / "sft", rows)
    given = TeacherSettings(**{"base": str(home / "big"), "licence": "mit", **settings})
    with AnswerStore(home / "kept.jsonl") as kept:
        return build_teacher_answers(dataset, home / "out", given, kept, model=ModelTeacher(digest, worker.run))


def test_rejection_sampling_in_process(tmp_path):
    rows = [sums("a", "6 x 7?", "It is 42."), sums("b", "3 + 4?", "7"), sums("c", "hello", "hi")]
    worker = Worker("so 41", "that makes 42", None, "so 41")
    settings = {
        "answers": 4,
        "verify": {"kind": "number"},
        "max_tokens": 9,
        "temperature": 0.6,
        "request": {"top_k": 5},
        "seed": 3,
    }
    report = build(tmp_path, rows, worker, **settings)
    assert worker.settings == {
        "temperature": 0.6,
        "top_p": 1.0,
        "request": {"top_k": 5},
        "max_new_tokens": 9,
        "batch_size": 64,
        "seed": 3,
    }
    assert len(worker.asked[0]) == len({row["key"] for row in worker.asked[0]}) == 12
    learnt = {
        row["row_id"]: json.loads(row["messages"])[-1]["content"]
        for row in pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    }
    assert learnt["a"] == "that makes 42" and "b" not in learnt and "c" in learnt
    assert (report.answered, report.reused, report.rejected_rows, report.rejected_answers, report.preferences) == (
        2,
        0,
        1,
        5,
        1,
    )
    assert report.cost == 0 and report.prompt_tokens == 60
    told = pq.read_table(tmp_path / "out" / "requests.parquet").to_pylist()
    assert {row["model"] for row in told} == {"big"} and sum(row["failure"] == "cut by max_tokens" for row in told) == 3
    [pair] = pq.read_table(tmp_path / "out" / "preferences.parquet").to_pylist()
    assert json.loads(pair["rejected"])[0]["content"] == "so 41"
    again = build(tmp_path, rows, worker, **settings)
    assert len(worker.asked) == 1 and again.reused == 2  # nothing is computed again
    for other in ({"digest": "d2"}, {"seed": 4}):
        build(tmp_path, rows, worker, **{**settings, **other})
        assert len(worker.asked[-1]) == 12
    build(tmp_path, rows, worker, **{**settings, "answers": 5})
    assert len(worker.asked[-1]) == 3  # the missing ones


def test_no_empty_dataset_is_written_where_all_are_rejected_or_cut(tmp_path):
    rows = [sums("a", "6 x 7?", "42"), sums("b", "3 + 4?", "7")]
    with pytest.raises(TeacherError, match="no answer to any of 2 rows reached the least score 1"):
        build(tmp_path, rows, Worker("41", None), answers=2, verify={"kind": "number"}, most_failed=1)
    with pytest.raises(TeacherError, match=r"2 of 2 rows have no usable answer \(2 cut by max_tokens\)"):
        build(tmp_path, rows, Worker(None), most_failed=0.5, seed=1)
    assert not list((tmp_path / "out").glob("*.parquet"))


@pytest.mark.parametrize(("values", "said"), [
    ({"base": "big", "base_url": "http://localhost:1/v1"}, "one teacher answers: leave one of them out"),
    ({"base": "big", "model": "m"}, "model is for a teacher at an endpoint"),
    ({"base": "big", "price": {"input": 1, "output": 1}}, "price is for a teacher at an endpoint"),
    ({"base": "big", "request": {"stop": ["a"]}}, "request holds stop, which the built-in generator does not know"),
    ({"base": "big", "logprobs": 5}, "log-probabilities come from endpoints: leave logprobs out"),
    ({"base": "sft"}, "set trains to student"),
    ({}, "base_url and model are missing: give base_url and model"),
    ({"base_url": "http://localhost:1/v1"}, "model is missing"),
    ({"base_url": "http://localhost:1/v1", "model": "m", "batch_size": 3}, "batch_size is for a teacher in process"),
])  # fmt: skip
def test_wrong_combinations_are_refused(values, said):
    with pytest.raises(ValidationError, match=said):
        TeacherSettings(licence="mit", **values)
