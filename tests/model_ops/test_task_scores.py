"""Asking evaluation items: answers of the served model, base and champion are scored, compared in pairs, and failures are
named."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from judge_server import completion, judge_server
from tiny_models import write_target

from model_ops.answers import AnswerLog
from model_ops.completions.endpoint import read_chat
from model_ops.evaluation import task_scores as scores
from model_ops.evaluation.measurement import find
from model_ops.evaluation.own_answers import ItemAnswer, OwnModel, answer_items
from model_ops.evaluation.settings import EvaluateSettings, TaskSettings
from model_ops.evaluation.task_scores import task_scores
from model_ops.graders.judge import PairwiseJudge, last_object
from model_ops.jobs import Job, Progress, Stopped
from model_ops.tasks.item import JudgedItem


def item(suite, number, **fields):
    return {"suite": suite, "item_id": str(number), "messages": [{"role": "user", "content": f"question {number}"}], **fields}


def job(tmp_path, asked, **tasks):
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "tasks.jsonl").write_text("".join(json.dumps(each) + "\n" for each in asked))
    for role in ("target", "base"):
        (tmp_path / role).mkdir(exist_ok=True)
    settings = {"tasks": tasks}
    inputs = {"dataset": tmp_path, "target": tmp_path / "target", "base": tmp_path / "base", "tasks": tmp_path / "suite"}
    made = Job(operation="evaluate", inputs=inputs, output=tmp_path / "out", settings=settings)
    made.output.mkdir()
    return made, EvaluateSettings.model_validate(settings)


def answering(monkeypatch, by_role):
    """Replaces the models: by_role gives the answer to each item."""

    def answer_items(directory, items, *_):
        return {scores.key_of(each): {"greedy": [ItemAnswer(by_role[directory.name](each))]} for each in items}

    monkeypatch.setattr(scores, "answer_items", answer_items)


def test_a_served_model_that_became_worse_at_a_suite(tmp_path, monkeypatch):
    numbers = [item("gsm8k", n, kind="number", answer=str(n)) for n in range(40)]
    programs = [item("code", n, kind="unit_tests", test="assert x == 1") for n in range(3)]
    answering(
        monkeypatch,
        {
            "base": lambda each: f"#### {each.item_id}" if each.suite == "gsm8k" else "x = 1",
            "target": lambda each: (
                f"#### {each.item_id}" if int(each.item_id) % 2 else "while True: pass" if each.suite == "code" else "?"
            ),
        },
    )
    found = task_scores(*job(tmp_path, numbers + programs, test_seconds=0.5), Progress())
    assert find(found.measurements, "accuracy", of="base", on="gsm8k").value == 1.0
    worse = find(found.measurements, "accuracy_gain", of="target", against="base", on="gsm8k")
    assert worse.value == -0.5 and -0.7 < worse.low < worse.high < -0.3 and worse.n == 40
    assert find(found.measurements, "accuracy", of="target", on="code").value == 0.0
    assert found.not_measured == {} and found.suites["code"].items() >= {"kind": "unit_tests", "items": 3, "asked": 3}.items()
    assert "seccomp" in found.suites["code"]["isolation"]
    rows = pq.read_table(tmp_path / "out" / "task_scores.parquet").to_pylist()
    assert len(rows) == 2 * 43 and {row["model"] for row in rows} == {"target", "base"}


def test_a_real_model_answers_and_one_that_cannot_be_read_is_named(tmp_path):
    write_target(tmp_path / "target")
    items = [item("gsm8k", n, kind="number", answer=str(n)) for n in range(6)]
    made, settings = job(tmp_path, items, items=4, samples=2, max_new_tokens=5)
    found = task_scores(made, settings, Progress())
    assert list(found.not_measured) == ["tasks of base"] and "holds no tokenizer" in found.not_measured["tasks of base"]
    assert {(each.what, each.of, each.sampling, each.n) for each in found.measurements} == {
        (what, "target", sampling, 4) for what in ("accuracy", "solved", "cut") for sampling in ("greedy", "sampled")
    }
    assert find(found.measurements, "cut", sampling="greedy").value > 0.5, "a model of noise does not end within five tokens"


def test_samples_give_the_mean_score_and_the_share_of_items_that_one_of_them_solves(tmp_path, monkeypatch):
    items = [item("gsm8k", n, kind="number", answer=str(n)) for n in range(10)]

    def answer_items(directory, items, *_):
        said = {str(n): [ItemAnswer(f"#### {n if n < 4 else 99}"), ItemAnswer("#### 99", is_cut=True)] for n in range(10)}
        return {scores.key_of(each): {"sampled": said[each.item_id]} for each in items}

    monkeypatch.setattr(scores, "answer_items", answer_items)
    found = task_scores(*job(tmp_path, items), Progress())
    shares = {what: find(found.measurements, what, of="target").value for what in ("accuracy", "solved", "cut")}
    assert shares == {"accuracy": 0.2, "solved": 0.4, "cut": 0.5}


QUESTION = JudgedItem(suite="s", item_id="1", messages=[{"role": "user", "content": "2 + 2?"}])


def prefers(said):
    """A judge that prefers the answer `good`, or says something else."""

    def answer(body, number):
        shown = body["messages"][1]["content"]
        return completion(said if said else json.dumps({"better": "A" if "<A>\ngood" in shown else "B"}))

    return answer


@pytest.mark.parametrize(("said", "wanted"), [("", 1.0), ('{"better": "A"}', 0.0), ('{"better": "tie"}', 0.0), ("hm", None)])
def test_a_win_needs_both_orders(said, wanted):
    with (
        judge_server(prefers(said)) as (address, _),
        PairwiseJudge(
            EvaluateSettings.model_validate({"tasks": {"judge": {"base_url": address, "model": "j"}}}).tasks.judge
        ) as judge,
    ):
        assert judge.compare(QUESTION, "good", "bad") == wanted
        if wanted == 1.0:
            assert judge.compare(QUESTION, "bad", "good") == -1.0


def test_suites_with_a_judge(tmp_path, monkeypatch):
    answering(monkeypatch, {"target": lambda each: "good", "base": lambda each: "bad"})
    items = [item("chats", n, kind="judge") for n in range(4)] + [item("exact", 1, kind="exact", answer="good")]
    with judge_server(prefers("")) as (address, _):
        found = task_scores(*job(tmp_path, items, judge={"base_url": address, "model": "j"}), Progress())
        assert find(found.measurements, "accuracy_gain", on="chats", against="base").value == 1.0
    with judge_server(prefers("nonsense")) as (address, _):
        (tmp_path / "again").mkdir()
        found = task_scores(*job(tmp_path / "again", items, judge={"base_url": address, "model": "j"}), Progress())
        assert "no usable reply to 4 of 4 items" in found.not_measured["chats"]
        assert find(found.measurements, "accuracy", on="exact", of="target").value == 1.0
    (tmp_path / "none").mkdir()
    found = task_scores(*job(tmp_path / "none", items), Progress())
    assert "need a judge" in found.not_measured["chats"] and find(found.measurements, "accuracy", on="exact") is not None


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"[]",
        b'{"choices": [{"message": {"content": 3}}]}',
        b"\xff",
        b'{"choices": [{"message": {"content": "{\\"better\\": \\"C\\"}"}}]}',
    ],
)
def test_a_reply_that_is_no_preference(reply):
    assert last_object(read_chat(reply).text).get("better") not in ("A", "B", "tie")


def test_what_the_served_model_keeps_of_its_unquantized_form(tmp_path, monkeypatch):
    """Of 20 items that the unquantized model answers right, int8 loses one; of the other suite nothing is right before."""
    answering(
        monkeypatch,
        {
            "target": lambda each: "good" if each.item_id != "7" else "bad",
            "reference": lambda each: "good",
            "base": lambda each: "bad",
        },
    )
    items = [
        *(item("exact", n, kind="exact", answer="good") for n in range(20)),
        *(item("none", n, kind="exact", answer="other") for n in range(5)),
    ]
    made, settings = job(tmp_path, items)
    (tmp_path / "reference").mkdir()
    made.inputs["reference"] = tmp_path / "reference"
    found = task_scores(made, settings, Progress())
    kept = find(found.measurements, "accuracy_kept", on="exact", against="reference", sampling="greedy")
    assert kept.value == pytest.approx(0.95) and kept.low < 0.95 < kept.high and kept.n == 20
    assert find(found.measurements, "accuracy_kept", on="all suites").value == pytest.approx(0.95)
    assert find(found.measurements, "accuracy_gain", on="exact", against="reference").value == pytest.approx(-0.05)
    assert found.not_measured == {"accuracy kept on none": "the unquantized model answers no item right"}


def test_an_unquantized_model_is_asked_once_and_keeps_everything(tmp_path, monkeypatch):
    answering(monkeypatch, {"target": lambda each: "good", "base": lambda each: "good"})
    made, settings = job(tmp_path, [item("exact", 1, kind="exact", answer="good")])
    made.inputs["reference"] = tmp_path / "target"
    assert find(task_scores(made, settings, Progress()).measurements, "accuracy_kept") is None


def test_a_killed_evaluation_asks_for_no_answer_twice(tmp_path, monkeypatch):
    write_target(tmp_path / "target")
    items = [
        JudgedItem(suite="chats", item_id=str(n), messages=[{"role": "user", "content": f"question {n}"}]) for n in range(5)
    ]
    settings, asked = TaskSettings(samples=1, max_new_tokens=4), []
    whole = OwnModel.answers
    monkeypatch.setattr(OwnModel, "answers", lambda self, prompts, *more: asked.extend(prompts) or whole(self, prompts, *more))

    class StopsAfterTwoBatches(Progress):
        def stop_if_requested(self):
            if len(asked) == 4:
                raise Stopped

    def answers(progress, key="job"):
        with AnswerLog(tmp_path / "answers.jsonl") as log:
            return answer_items(tmp_path / "target", items, settings, 2, 0, progress, "tasks", log, key)

    with pytest.raises(Stopped):
        answers(StopsAfterTwoBatches())
    found = answers(Progress())
    assert sorted(asked) == sorted(2 * [f"chats/{n}#0" for n in range(5)]), "one greedy and one sampled answer to each item"
    assert {len(texts) for of_item in found.values() for texts in of_item.values()} == {1} and len(found) == 5
    assert answers(Progress(), key="other job") == found, "nothing is taken from another job, and answers are the same"
    monkeypatch.setattr("model_ops.evaluation.own_answers.load_runner", None)
    assert answers(Progress()) == found, "where nothing is missing, the model is not loaded"
