"""Suites in a recipe of `millrace init`: each file by itself, with the task that can score every item."""

from datetime import UTC, datetime

import pytest

from pipelines.init.suites import suites_of
from resources.inspecting.overview import FirstLook
from resources.inspecting.source_survey import SourceProposal, survey
from resources.sources.listing import LogObject
from tests.resources.inspecting.test_survey import PAIR, put

ITEMS = {
    "numbers": ([{"prompt": "1 + 1", "answer": "2"}, {"prompt": "2 + 2", "answer": "4"}], "number"),
    "words": ([{"prompt": "capital of France", "answer": "Paris"}], "exact"),
    "some-numbers": ([{"prompt": "1 + 1", "answer": "2"}, {"prompt": "capital", "answer": "Paris"}], "exact"),
    "schemas": ([{"prompt": "a person", "schema": {"type": "object", "required": ["name"]}}], "json_schema"),
    "patterns": ([{"prompt": "a date", "pattern": "\\d{4}-\\d\\d-\\d\\d"}], "regex"),
    "code": ([{"prompt": "def add", "test": "assert add(1, 2) == 3"}], "unit_tests"),
    "essays": ([{"prompt": "tell me", "answer": "a long story about it " * 9}], None),
    "gsm8k": ([{"question": "1 + 1?", "answer": "one and one\n#### 2"}], None),  # known by its form
    "prompts": ([{"prompt": "be kind"}], None),
}


def test_every_file_of_a_folder_is_a_suite_with_the_task_that_fits(tmp_path):
    put(tmp_path / "logs" / "a.jsonl", PAIR)
    for name, (items, _) in ITEMS.items():
        put(tmp_path / "evals" / f"{name}.jsonl", *items)
    (source,) = [each for each in survey([str(tmp_path)]) if each.kind == "evals"]
    assert {name: suite.get("task") for name, suite in suites_of(source).items()} == {n: task for n, (_, task) in ITEMS.items()}
    assert suites_of(source)["words"]["uri"] == str(tmp_path / "evals" / "words.jsonl")


def test_a_folder_that_is_not_on_this_machine_is_a_pattern(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "here.jsonl", *ITEMS["words"][0])
    far = SourceProposal(
        "suite",
        "s3://b/evals",
        "evals",
        FirstLook([LogObject("logs", "s3://b/evals/suite.jsonl", 1, "", datetime(2026, 6, 1, tzinfo=UTC))]),
    )
    assert suites_of(far) == {"suite": {"uri": "s3://b/evals/*"}}


@pytest.mark.parametrize("name", ["words", "essays"])
def test_a_single_file_is_one_suite(tmp_path, name):
    items, task = ITEMS[name]
    put(tmp_path / "evals.jsonl", *items)
    (source,) = survey([str(tmp_path / "evals.jsonl")])
    assert suites_of(source) == {"evals": {"uri": str(tmp_path / "evals.jsonl")} | ({"task": task} if task else {})}
