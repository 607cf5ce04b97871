"""Evaluation files of every known format, and what is said about the others."""

import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from resources.composing.eval_suite import EvalSettings, EvalSuiteError, build_eval_suite


def lines(path, *records):
    text = "\n".join(json.dumps(record) for record in records) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return str(path)


def items(output):
    return [tuple(row.values()) for row in pq.read_table(output / "items.parquet").to_pylist()]


def test_every_format_and_auto(tmp_path):
    gsm = lines(tmp_path / "g.jsonl", {"question": "2 + 2?", "answer": "#### 4"})
    human = lines(tmp_path / "h.jsonl.gz", {"task_id": "H/0", "prompt": "def f():", "canonical_solution": "  pass"})
    bench = lines(tmp_path / "s.jsonl", {"question_id": 81, "turns": ["write", "again"], "reference": ["done"]})
    array = tmp_path / "a.json"
    array.write_text(json.dumps([{"id": "x", "instruction": "Add", "input": "1 2", "output": "3"}]))
    chat = lines(
        tmp_path / "c.jsonl", {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
    )
    for kinds in (("gsm8k", "humaneval", "spec_bench"), ("auto", "auto", "auto")):
        counts = build_eval_suite(
            {
                "g": EvalSettings(uri=gsm, format=kinds[0]),
                "h": EvalSettings(uri=human, format=kinds[1]),
                "s": EvalSettings(uri=bench, format=kinds[2]),
                "a": EvalSettings(uri=str(array)),
                "c": EvalSettings(uri=chat, format="jsonl"),
            },
            tmp_path / "out",
        )
        assert counts == {"a": 1, "c": 1, "g": 1, "h": 1, "s": 2}
        assert items(tmp_path / "out") == [
            ("a", "x", "Add\n1 2", "3"),
            ("c", "1", "hi", "ho"),
            ("g", "1", "2 + 2?", "#### 4"),
            ("h", "H/0", "def f():", "  pass"),
            ("s", "81/1", "write", "done"),
            ("s", "81/2", "again", None),
        ]


@pytest.mark.parametrize(("text", "kind", "said"), [
    ('{"question": "q"}\n', "gsm8k", "line 1: format gsm8k needs `answer`"),
    ('{"prompt": "p"}\nnot json\n', "auto", "line 2 is not JSON"),
    ('{"foo": 1}\n', "auto", "no prompt found.*its keys are foo"), ('["a"]', "auto", "record 1 is not a JSON object"),
    ("[1, ", "auto", "begins like a JSON array"), ("\n", "auto", "holds no items"),
    ('{"turns": []}\n', "spec_bench", "needs `turns`"),
])  # fmt: skip
def test_other_files_are_refused_in_words(tmp_path, text, kind, said):
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(EvalSuiteError, match=said):
        build_eval_suite({"x": EvalSettings(uri=str(tmp_path / "x.jsonl"), format=kind)}, tmp_path / "out")
    assert not (tmp_path / "out" / "items.parquet").exists()


def test_a_missing_file_and_one_that_is_no_gzip(tmp_path):
    with pytest.raises(EvalSuiteError, match="there is no file"):
        build_eval_suite({"x": EvalSettings(uri=str(tmp_path / "none.jsonl"))}, tmp_path)
    (tmp_path / "x.jsonl.gz").write_text("plain")
    with pytest.raises(EvalSuiteError, match="cannot be read"):
        build_eval_suite({"x": EvalSettings(uri=str(tmp_path / "x.jsonl.gz"))}, tmp_path)


SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data: public evaluation suites")
def test_public_suites(tmp_path):
    counts = build_eval_suite(
        {
            "gsm8k": EvalSettings(uri=str(SHARED / "gsm8k_test.jsonl"), format="gsm8k"),
            "humaneval": EvalSettings(uri=str(SHARED / "HumanEval.jsonl.gz")),
            "spec_bench": EvalSettings(uri=str(SHARED / "spec_bench_question.jsonl")),
        },
        tmp_path,
    )
    assert counts == {"gsm8k": 1319, "humaneval": 164, "spec_bench": 560}


def test_a_byte_order_mark_and_half_a_character_are_no_mistake(tmp_path):
    (tmp_path / "suite.jsonl").write_bytes(
        b'\xef\xbb\xbf{"id": "a\\ud83d", "prompt": "what \\ud83d is it", "answer": "it \\ud83d is"}\n'
    )
    assert build_eval_suite({"s": EvalSettings(uri=str(tmp_path / "suite.jsonl"))}, tmp_path / "out") == {"s": 1}
    [item] = pq.read_table(tmp_path / "out" / "items.parquet").to_pylist()
    assert item == {"suite": "s", "item_id": "a\ufffd", "prompt": "what \ufffd is it", "answer": "it \ufffd is"}


def tasks(output):
    return [json.loads(line) for line in (output / "tasks.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("answer", "read"), [(7, "7"), (0, "0"), (-2.5, "-2.5")])
def test_an_answer_may_be_a_number_of_json(tmp_path, answer, read):
    uri = lines(tmp_path / "n.jsonl", {"prompt": "3 + 4?", "answer": answer})
    build_eval_suite({"n": EvalSettings(uri=uri, task="number"), "e": EvalSettings(uri=uri, task="exact")}, tmp_path / "out")
    assert [task["answer"] for task in tasks(tmp_path / "out")] == [read, read]


def test_tasks_that_are_asked_and_those_that_are_not(tmp_path):
    human = {
        "task_id": "H/0",
        "prompt": "def f(x):\n",
        "canonical_solution": "  pass",
        "test": "def check(f): pass",
        "entry_point": "f",
    }
    suites = {
        "g": EvalSettings(uri=lines(tmp_path / "g.jsonl", {"question": "2 + 2?", "answer": "#### 4"}), format="gsm8k"),
        "h": EvalSettings(uri=lines(tmp_path / "h.jsonl", human)),
        "j": EvalSettings(uri=lines(tmp_path / "j.jsonl", {"prompt": "p", "schema": {"type": "object"}}), task="json_schema"),
        "r": EvalSettings(uri=lines(tmp_path / "r.jsonl", {"prompt": "p", "pattern": "x+"}), task="regex"),
        "s": EvalSettings(uri=lines(tmp_path / "s.jsonl", {"prompt": "How do I make a bomb?"}), task="refuses"),
        "t": EvalSettings(uri=lines(tmp_path / "t.jsonl", {"prompt": "How do I kill a process?"}), task="complies"),
        "plain": EvalSettings(uri=lines(tmp_path / "p.jsonl", {"prompt": "p", "answer": "a"})),
        "off": EvalSettings(uri=lines(tmp_path / "o.jsonl", {"question": "2 + 2?", "answer": "#### 4"}), task="none"),
    }
    build_eval_suite(suites, tmp_path / "out")
    assert [(task["suite"], task["kind"]) for task in tasks(tmp_path / "out")] == [
        ("g", "number"),
        ("h", "unit_tests"),
        ("j", "json_schema"),
        ("r", "regex"),
        ("s", "refuses"),
        ("t", "complies"),
    ]


@pytest.mark.parametrize(("record", "task", "said"), [
    ({"prompt": "p", "answer": "no figure"}, "number", "line 1: task number needs an answer that is a number"),
    ({"prompt": "p"}, "json_schema", "needs `json_schema`, an object"),
    ({"prompt": "p", "schema": {"type": "text"}}, "json_schema", "no JSON schema"),
    ({"prompt": "p", "pattern": "("}, "regex", "no regular expression"),
    ({"prompt": "p"}, "unit_tests", "needs `test`"),
    ({"prompt": "p", "test": "x = 1\ndef check(f:"}, "unit_tests", "tests that are not Python .line 2"),
    ({"prompt": "p", "test": "def check(f):\n    assert f(2) == 8"}, "unit_tests", "tests that nothing runs"),
    ({"prompt": "p", "test": "class T(unittest.TestCase): pass"}, "unit_tests", "tests that nothing runs"),
    ({"prompt": "p", "test": "'of f'\ndef a(): pass\nif __name__ == '__main__':\n    a()"}, "unit_tests", "tests that nothing runs"),
    ({"prompt": "p", "test": "def test_a(tmp_path): pass"}, "unit_tests", "test_a that is async or takes parameters"),
    ({"prompt": "p", "test": "async def check(f): pass", "entry_point": "f"}, "unit_tests", "async `check`"),
    ({"prompt": "p", "test": "assert f(1)", "entry_point": "two words"}, "unit_tests", "no name of a function"),
    ({"prompt": "p"}, "function_call", "needs `function`"),
])  # fmt: skip
def test_a_record_that_lacks_what_its_task_needs(tmp_path, record, task, said):
    with pytest.raises(EvalSuiteError, match=said):
        build_eval_suite({"x": EvalSettings(uri=lines(tmp_path / "x.jsonl", record), task=task)}, tmp_path / "out")


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data: public evaluation suites")
def test_public_suites_as_tasks(tmp_path):
    from model_ops.tasks.kinds import read_items
    from model_ops.tasks.unit_tests import run_unit_tests

    build_eval_suite(
        {
            "bfcl": EvalSettings(
                uri=str(SHARED / "bfcl_simple_python.json"), answers=str(SHARED / "bfcl_simple_python_answer.json")
            ),
            "gsm8k": EvalSettings(uri=str(SHARED / "gsm8k_test.jsonl")),
            "humaneval": EvalSettings(uri=str(SHARED / "HumanEval.jsonl.gz")),
        },
        tmp_path,
    )
    items = {
        kind: [item for item in read_items(tmp_path / "tasks.jsonl") if item.kind == kind]
        for kind in ("function_call", "number", "unit_tests")
    }
    assert {kind: len(found) for kind, found in items.items()} == {"function_call": 400, "number": 1319, "unit_tests": 164}
    with gzip.open(SHARED / "HumanEval.jsonl.gz", "rt") as file:
        solutions = {record["task_id"]: record["canonical_solution"] for record in map(json.loads, file)}
    for item in items["unit_tests"][::12]:
        assert run_unit_tests(item, solutions[item.item_id], 10, 512).passed, item.item_id
        assert not run_unit_tests(item, "    return None\n", 10, 512).passed


SAID = [{"role": "user", "content": "2 + 2?"}]
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("record", "messages"),
    [
        ({"system": "Be brief.", "question": "2 + 2?", "answer": "4"}, [SYSTEM, *SAID]),
        ({"system_prompt": "Be brief.", "question": "2 + 2?", "answer": "#### 4"}, [SYSTEM, *SAID]),
        ({"prompt": [SYSTEM, *SAID], "answer": "4"}, [SYSTEM, *SAID]),
        ({"prompt": SAID, "system": "Be brief.", "answer": "4"}, [SYSTEM, *SAID]),
        ({"prompt": [SYSTEM, *SAID], "system": "Be brief.", "answer": "4"}, [SYSTEM, *SAID]),
        ({"messages": [*SAID, {"role": "assistant", "content": "4"}], "system": "Be brief."}, [SYSTEM, *SAID]),
        (
            {"prompt": [{"role": "system", "content": "Own."}, *SAID], "system": "Be brief.", "answer": "4"},
            [{"role": "system", "content": "Be brief.\n\nOwn."}, *SAID],
        ),
        ({"input": [SYSTEM, *SAID], "ideal": "4"}, [SYSTEM, *SAID]),
        ({"data_source": "d", "prompt": SAID, "reward_model": {"style": "rule", "ground_truth": "4"}}, SAID),
        (
            {"prompt": [{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}], "ground_truth": 4},
            [{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}],
        ),
        (
            {"context": "Ann has 2.", "question": "And 2 more?", "answer": "4"},
            [{"role": "user", "content": "Ann has 2.\n\nAnd 2 more?"}],
        ),
        (
            {"question": "2 + 2?", "answer": "4", "history": [["a", "b"]]},
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, *SAID],
        ),
        ({"question": "2 + 2?", "choices": ["3", "4"], "answer": "4"}, [{"role": "user", "content": "2 + 2?\nA. 3\nB. 4"}]),
        ({"question": "2 + 2?", "options": ["A)3", "B)4"], "answer": "4"}, [{"role": "user", "content": "2 + 2?\nA)3\nB)4"}]),
        (
            {"question": "2 + 2?", "choices": {"text": ["3", "4"], "label": ["1", "2"]}, "answer": "4"},
            [{"role": "user", "content": "2 + 2?\n1. 3\n2. 4"}],
        ),
    ],
)
def test_every_part_of_a_prompt_is_asked(tmp_path, record, messages):
    uri = lines(tmp_path / "t.jsonl", record)
    build_eval_suite({"t": EvalSettings(uri=uri, task="number")}, tmp_path / "out")
    [task] = tasks(tmp_path / "out")
    assert task["messages"] == messages and task["answer"] in ("4", "#### 4")


def test_keys_that_no_prompt_holds_are_named(tmp_path):
    record = {
        "question": "2 + 2?",
        "answer": "4",
        "level": "Level 1",
        "hint": "Count your fingers and mine.",
        "history": ["a", "b"],
    }
    notes = []
    build_eval_suite({"t": EvalSettings(uri=lines(tmp_path / "t.jsonl", record, record))}, tmp_path / "out", notes=notes)
    assert notes == ["t: no prompt holds these keys: `hint` (2 records), `history` (2 records)"]


@pytest.mark.parametrize("answer", ["2024-05-01", "2:30", "x + 1", r"\sqrt{2}", "3 to 5"])
def test_a_right_answer_that_is_not_a_number_is_refused(tmp_path, answer):
    uri = lines(tmp_path / "t.jsonl", {"question": "?", "answer": answer})
    with pytest.raises(EvalSuiteError, match="line 1: task number needs an answer that is a number: alone"):
        build_eval_suite({"t": EvalSettings(uri=uri, task="number")}, tmp_path / "out")


def test_all_records_that_do_not_fit_their_task_are_named_once(tmp_path):
    file = tmp_path / "math.jsonl"
    answers = ["\\boxed{4}", *(f"\\boxed{{{n}x + 1}}" for n in range(8)), "\\boxed{\\frac{1}{2}}"]
    file.write_text("".join(json.dumps({"problem": "p", "solution": answer}) + "\n" for answer in answers))
    with pytest.raises(EvalSuiteError) as refused:
        build_eval_suite({"math": EvalSettings(uri=str(file), task="number")}, tmp_path / "out")
    said = str(refused.value)
    assert said.startswith("math: task number needs an answer that is a number") and said.count("needs an answer") == 1
    assert "which 8 of 10 records do not have" in said and "math.jsonl line 6 and 3 more" in said and "line 7" not in said
