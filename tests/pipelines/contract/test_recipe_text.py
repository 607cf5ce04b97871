"""The text of a recipe: what is read, and every way in which a file is no recipe."""

from pathlib import Path

import pytest

from pipelines.contract.text import RecipeProblemsError, read_text


def read(folder, text, name="toy.yaml"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return read_text(path)


def refused(folder, text, name="toy.yaml"):
    with pytest.raises(RecipeProblemsError) as raised:
        read(folder, text, name)
    [problem] = raised.value.problems
    return problem


def test_plain_values_are_those_of_yaml_1_2(tmp_path):
    text = """
rate: 1e-3
rates: [1.0e-3, 2E+4, .5, 65_536, 0x10, 0o17, 010, -3, .inf]
words: [no, off, yes, 1:30, 2026-02-30, "8", 1.2.3, null, ~, true]
no: 1
2024: 2
"""
    read_as = read(tmp_path, text).content
    assert read_as["rate"] == 1e-3
    assert read_as["rates"] == [1e-3, 2e4, 0.5, 65_536, 16, 15, 10, -3, float("inf")]
    assert read_as["words"] == ["no", "off", "yes", "1:30", "2026-02-30", "8", "1.2.3", None, None, True]
    assert list(read_as)[-2:] == ["no", "2024"]


def test_every_key_and_item_has_its_line(tmp_path):
    text = read(tmp_path, "a: 1\n\nb:\n  c: {d: 1,\n      e: 2}\n  f:\n  - 1\n  - 2\n")
    assert text.lines["a",] == 1
    assert text.lines["b", "c", "e"] == 5
    assert text.lines["b", "f", 1] == 8
    assert text.line_of(("b", "c", "not there")) == 4
    assert text.line_of(("not there",)) is None


def test_anchors_and_merge_keys_work_and_keep_their_lines(tmp_path):
    text = read(tmp_path, "sft: &t\n  steps: 3\n  seed: 1\nstudent:\n  <<: *t\n  seed: 2\nother: {<<: [*t]}\n")
    assert text.content["student"] == {"steps": 3, "seed": 2}
    assert text.lines["student", "steps"] == 2
    assert text.lines["student", "seed"] == 6
    assert text.problems == []


def test_keys_given_twice_are_all_named(tmp_path):
    text = read(tmp_path, "a: 1\nb: {c: 1, c: 2}\na: 2\na: 3\n")
    said = [(problem.line, problem.key, problem.sentence) for problem in text.problems]
    assert said == [
        (2, "b.c", "is given twice, first in line 2; keep one of them"),
        (3, "a", "is given twice, first in line 1; keep one of them"),
        (4, "a", "is given twice, first in line 1; keep one of them"),
    ]
    assert text.content["a"] == 1


@pytest.mark.parametrize("text, line, words", [
    ("a: 1\nb:\n\tc: 2\n", 3, "not valid YAML: a tab"),
    ("a: 1\nb:\tc: 2\n", 2, "not valid YAML"),
    ("a: [1, 2\nb: 3\n", 2, "the bracket of line 1 is not closed"),
    ("a: {b: 1\n", 2, "the bracket of line 1 is not closed"),
    ("a: b: c\n", 1, "there is a colon where no key can be"),
    ("a\nb: 1\n", 2, "the line above lacks its colon"),
    ("a: 1\nb\nc: 1\n", 2, "this line has no colon and space after its key"),
    ('a: "open\nb: 1\n', 1, "the quote that opens in this line is never closed"),
    ('a: "C:\\data"\n', 1, "use single quotes"),
    ("a: 1\n  b: 2\nc: 3\n", 2, "indent a key like its neighbours"),
    ("a:\n  b: 1\n c: 2\n", 3, "not indented like its neighbours"),
    ("cron: * * * * *\n", 1, "a value that begins with * or & needs quotes"),
    ("a: *nowhere\n", 1, "a value that begins with * or & needs quotes"),
    ("cron: @daily\n", 1, "a value that begins with @ needs quotes"),
    ("a: `x`\n", 1, "a value that begins with ` needs quotes"),
    ("a recipe\n\n---x\n--- \n%\n", 5, "not valid YAML"),
    ("{a: 1}\nb: 2\n", 2, "put # before a comment"),
    ("a: > b\n", 1, "a value that begins with | or > needs quotes"),
    ("a: - b\n", 1, "write it in a line of its own"),
    ("a: 1\n: 2\n", 2, "a key is missing before the colon"),
    ("a: 1\n---\nb: 2\n", 3, "a second document begins here"),
    ("a: 1\nb: \x01\n", 2, "control character"),
    ("", None, "it is empty"),
    ("# only a comment\n", None, "it is empty"),
    ("---\n...\n", None, "it is empty"),
    ("- a\n- b\n", None, "it holds a list"),
    ("workload", None, "it holds a single value"),
    ("a: &a [*a]\n", None, "aliases"),
    ("a: &a\n  <<: *a\n", None, "aliases"),
    ("a: " + "[" * 3000, None, "nested too deeply"),
    ("a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d]\n", None, "aliases"),
    (b"\xff\xfea\x00:\x00", None, "it is UTF-16; save it as UTF-8"),
    (b"a: 1\nb: \xe4\n", 2, "this is no UTF-8"),
    (b"\x89PNG\r\n\x1a\n\x00\x00\x00", 1, "cannot be read as text"),
    ("# padding\n" * 120_000, None, "1.2 MB"),
])  # fmt: skip
def test_what_is_no_recipe_is_said_with_its_line(tmp_path, text, line, words):
    problem = refused(tmp_path, text)
    assert words in problem.sentence
    assert problem.line == line
    assert "\n" not in problem.sentence and "expected <" not in problem.sentence


@pytest.mark.parametrize("text, key, words", [
    ("a: !include b.yaml\n", "a", "the tag !include means nothing in a recipe"),
    ("a: !!python/object/apply:os.system [ls]\n", "a", "the tag !!python/object/apply:os.system means nothing"),
    ("a: !!set {b, c}\n", "a", "the tag !!set means nothing"),
    ("? [a, b]\n: 1\n", "", "a key is a word"),
    ("{{ name }}: 1\n", "", "a key is a word"),
    ("a: {'': 1}\n", "a", "a key is missing"),
    ("a: " + "9" * 5000, "a", "too many digits"),
    ("a: !!int x\n", "a", "no value of the kind !!int"),
    ('a: "x\\0y"\n', "a", "the character \\0"),
    ('a: "\\ud83d"\n', "a", "a lone surrogate"),
    ("a: {<<: 3}\n", "a", "`<<` takes an alias"),
])  # fmt: skip
def test_values_that_mean_nothing_are_named(tmp_path, text, key, words):
    [problem] = read(tmp_path, text).problems
    assert (problem.key, problem.line) == (key, 1)
    assert words in problem.sentence


def test_no_message_shows_the_text_of_a_line(tmp_path):
    for text in ("a: [s3://me:hunter2@b\nb: 1\n", "a: hunter2: x\n", "a: 'hunter2\n", "hunter2\nb: 1\n"):
        assert "hunter2" not in str(refused(tmp_path, text))


def test_a_recipe_in_json_and_one_with_a_byte_order_mark(tmp_path):
    json = '{"workload": "shop",\n\t"sources": {"g": {"uri": "logs\\/a \\ud83d\\ude00"}}}'
    assert read(tmp_path, json, "shop.json").content == {"workload": "shop", "sources": {"g": {"uri": "logs/a 😀"}}}
    assert read(tmp_path, b"\xef\xbb\xbfa: 1\r\n").content == {"a": 1}


def test_a_path_that_is_no_file_is_named_with_the_nearest_one(tmp_path):
    (tmp_path / "shop.yaml").write_text("a: 1\n")
    for path, words in (
        (tmp_path / "shp.yaml", f"there is no recipe at this path; did you mean {tmp_path / 'shop.yaml'}?"),
        (tmp_path, f"is a directory; give the recipe's YAML file, such as {tmp_path / 'shop.yaml'}"),
        (Path("/dev/null"), "is no regular file"),
        (tmp_path / ("x" * 300), "cannot be read as text"),
        (tmp_path / "a\0b", "cannot be read as text"),
    ):
        with pytest.raises(RecipeProblemsError) as raised:
            read_text(path)
        assert words in str(raised.value)
