"""An object that has a key twice: the last value counts, as in the libraries that servers and clients read JSON with."""

import json

import pyarrow as pa
import pytest
from test_formats import pair, read

from resources.records.extraction import LINES
from resources.records.repeated_keys import with_last_values


def lines(*texts):
    return pa.table([[0] * len(texts), list(range(len(texts))), list(texts)], LINES)


@pytest.mark.parametrize(("text", "meant"), [
    ('{"a": 1, "a": 2}', {"a": 2}),
    ('{"a": {"b": "x", "c": [1], "b": "y"}}', {"a": {"b": "y", "c": [1]}}),
    ('[{"a": 1}, {"a": 2, "b": {"a": 3}, "a": 4}]', [{"a": 1}, {"a": 4, "b": {"a": 3}}]),
    ('{"q\\"": [], "q\\"": [{}], "k": "\\\\"}', {'q"': [{}], "k": "\\"}),
])  # fmt: skip
def test_the_last_of_two_values_counts(text, meant):
    assert json.loads(text) == meant
    [given] = with_last_values(lines(text))["raw"].to_pylist()
    assert json.loads(given, object_pairs_hook=list) == json.loads(json.dumps(meant), object_pairs_hook=list)


@pytest.mark.parametrize("text", [
    '{"a": {"a": {"a": "a"}}, "b": [{"a": 1}, {"a": 1}, ["a", "a"]]}', '{"a": "\\", \\"a\\": 2", "b": "a"}', '{"a": 1, "a": ',
    "", "null", '{"a": "b", "b": ["a,", ",", "a"], "c": {"a": 1}, "d": {"b": 1}}', "[" * 300 + "]" * 300, "a, b, a",
])  # fmt: skip
def test_other_texts_stay_as_they_are(text):
    assert with_last_values(lines("{}", text))["raw"].to_pylist() == ["{}", text]


def test_a_record_with_two_contents_is_the_one_that_its_client_read(tmp_path):
    twice = json.dumps(pair()).replace('"messages":', '"messages": [{"role": "user", "content": "first"}], "messages":', 1)
    [row], bad, _, _ = read(tmp_path, twice.encode())
    assert not bad and [message["content"] for message in json.loads(row["messages"])] == ["hé"]
