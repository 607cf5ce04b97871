"""Paths of `fields`: what they name, how they are written, and which are refused."""

import pytest

from resources.records.json_paths import path_of, steps_of, value_at

RECORD = {"payload": '{"request": {"messages": [{"content": "hé"}, {"content": "b"}]}}', "user.id": 7, "a b": {"c": False},
    "items": [{"x": [1, 2]}], "n": None}  # fmt: skip


@pytest.mark.parametrize(("path", "value"), [
    ("payload.request.messages[0].content", "hé"),
    ("$.payload.request.messages[-1].content", "b"),
    ("$.a b.c", False),
    ('["user.id"]', 7),
    ("$['user.id']", 7),
    ("items[0].x[1]", 2),
    ("items.0.x.1", 2),
    ("items[1].x", None),
    ("n", None),
    ("payload.request.absent", None),
    ("items.x", None),
    ("n.deeper", None),
    ("user.id", None),
    (" $.items[0]['x'][0] ", 1),
])  # fmt: skip
def test_a_path_reads_one_value_also_inside_json_text(path, value):
    steps = steps_of(path)
    assert value_at(RECORD, steps) == value
    assert steps_of(path_of(steps)) == steps


@pytest.mark.parametrize("path", [
    "", "$", ".", "a..b", "a[*]", "*", "a.", "a[0", "[0]", "a]", 'a["b]', "a[x]", "$..a", "a[?(@.b)]", "a[0]b", "a.b.",
    "a" + ".b" * 40,
])  # fmt: skip
def test_a_path_that_names_no_single_value_is_refused_in_one_sentence(path):
    with pytest.raises(ValueError, match=r"such as payload\.request or items"):
        steps_of(path)
