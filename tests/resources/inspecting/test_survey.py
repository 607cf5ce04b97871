"""A survey: which sources a recipe should name for a folder, and what a first look says of each."""

import json

import pytest

from resources.inspecting.overview import first_look
from resources.inspecting.source_survey import survey
from resources.sources.sources import SourceError, SourceSettings

PAIR = {
    "request": {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
        "user": "u-1",
        "tools": [{"type": "function", "function": {"name": "f"}}],
    },
    "response": {"id": "r1", "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}]},
}
THUMB = {"response_id": "r1", "name": "thumbs", "value": 1}
SEED = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
ITEM = {"id": "1", "prompt": "p", "answer": "a"}


def put(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def kinds(root):
    return {found.name: (found.kind, found.uri.removeprefix(f"{root}/")) for found in survey([str(root)])}


def test_parts_of_a_folder_that_differ_are_sources_of_their_own(tmp_path):
    put(tmp_path / "gateway" / "2026-06-01.jsonl", PAIR)
    put(tmp_path / "Thumbs & more" / "x.jsonl", THUMB)
    put(tmp_path / "seeds.jsonl", SEED)
    put(tmp_path / "evals" / "suite.jsonl", ITEM)
    put(tmp_path / "notes.json", {"a": 1})
    assert kinds(tmp_path) == {
        "gateway": ("logs", "gateway"),
        "thumbs-more": ("feedback", "Thumbs & more"),
        "seeds": ("seeds", "seeds.jsonl"),
        "evals": ("evals", "evals"),
        "notes": ("unknown", "notes.json"),
    }


def test_a_folder_of_days_is_one_source_and_so_is_one_of_one_format(tmp_path):
    for day in ("dt=2026-06-01", "dt=2026-06-02"):
        put(tmp_path / "gateway" / day / "part.jsonl", PAIR)
    for name in ("a", "b"):
        put(tmp_path / "same" / name / "part.jsonl", PAIR)
    assert [found.uri for found in survey([str(tmp_path / "gateway"), str(tmp_path / "same")])] == [
        str(tmp_path / "gateway"),
        str(tmp_path / "same"),
    ]


def test_files_that_differ_in_their_day_alone_are_one_pattern(tmp_path):
    for day in ("2026-06-01", "2026-06-02"):
        put(tmp_path / f"gateway-{day}.jsonl", PAIR)
        put(tmp_path / f"thumbs-{day}.jsonl", THUMB)
    assert kinds(tmp_path) == {"gateway": ("logs", "gateway-*.jsonl"), "thumbs": ("feedback", "thumbs-*.jsonl")}


def test_names_are_unique_and_fit_for_a_recipe(tmp_path):
    put(tmp_path / "one" / "Ünïcode Lögs.jsonl", PAIR)
    put(tmp_path / "two" / "Ünïcode Lögs.jsonl", PAIR)
    names = [found.name for found in survey([str(tmp_path / folder / "Ünïcode Lögs.jsonl") for folder in ("one", "two")])]
    assert names == ["n-code-l-gs", "n-code-l-gs-2"]


def test_files_of_no_known_format_are_sources_with_the_fields_that_each_needs(tmp_path):
    for name, (ask, say) in {"a": ("asked", "reply"), "b": ("asked", "reply"), "c": ("user_message", "reply")}.items():
        put(tmp_path / f"{name}.jsonl", *({ask: f"what is {n}?", say: f"it is {n}"} for n in range(4)))
    found = survey([str(tmp_path)])
    assert [(each.kind, each.look.proposed["prompt"]) for each in found] == [
        ("logs", "asked"),
        ("logs", "asked"),
        ("logs", "user_message"),
    ]
    (tmp_path / "c.jsonl").unlink()
    [whole] = survey([str(tmp_path)])
    assert whole.uri == str(tmp_path) and whole.look.proposed == {"prompt": "asked", "answer": "reply"}


def test_nothing_there_is_said(tmp_path):
    with pytest.raises(SourceError, match="no file or directory"):
        survey([str(tmp_path / "nowhere")])


def test_a_first_look_tells_formats_tools_system_prompts_and_users(tmp_path):
    put(tmp_path / "a.jsonl", PAIR, PAIR, {"odd": 1})
    look = first_look("a", SourceSettings(uri=str(tmp_path)))
    assert dict(look.formats) == {"openai_pairs": 2} and look.unknown_records == 1 and look.unknown_keys == "odd"
    (tmp_path / "broken.csv").write_text('a;b;c\n1;"x"y;z\n1;two words;z\n1;two words;z\n')
    assert first_look("x", SourceSettings(uri=str(tmp_path / "broken.csv"))).unknown_records == 2
    assert look.has_tools and look.with_system and look.has_users and look.holds_logs


def test_a_declared_format_that_the_records_are_not_of_is_told(tmp_path):
    put(tmp_path / "a.jsonl", PAIR)
    look = first_look("a", SourceSettings(uri=str(tmp_path), format="litellm"))
    assert not look.formats
    assert look.problems[0][1].startswith("its first records are not of the format litellm")


def test_objects_without_records_are_told(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "text.jsonl").write_text("no json\n")
    look = first_look("a", SourceSettings(uri=str(tmp_path)))
    assert [said.split(";")[0] for _, said in look.problems] == ["is empty", "no line of the file is a JSON object"]
    assert not look.holds_logs and not look.holds_feedback_only
