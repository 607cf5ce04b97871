"""A wrong recipe is answered with one sentence a problem: the line, the key, and what would be right."""

import itertools
import json
import random
import re
from pathlib import Path

import pytest

from pipelines.contract.keys import ANY_NAME, accepted, keys_of
from pipelines.contract.recipe import Recipe, load_recipe
from pipelines.contract.text import RecipeProblemsError, read_text
from pipelines.storage.locations import RECIPES
from tests.pipelines.contract.wrong_recipes import SMALLEST, VALUES, recipe_with, unlike_keys
from tests.thorough_cases import thorough_except

UNCLEAN = re.compile(r"pydantic|Input should|\bNone\b|Settings|: ?:|::|<class|\n|\bdict\b|\bstr\b|\bint\b|Traceback")


def problems(folder, text):
    path = folder / "toy.yaml"
    path.write_text(text)
    with pytest.raises(RecipeProblemsError) as raised:
        load_recipe(path)
    for problem in raised.value.problems:
        assert not UNCLEAN.search(str(problem)), problem
    assert str(raised.value).count("\n") == len(raised.value.problems) - 1
    return raised.value.problems


def said(folder, more):
    return [str(problem) for problem in problems(folder, SMALLEST + more)]


PROBLEMS = [
    case.rpartition("\n-> ")[::2]
    for case in Path(__file__).with_name("problems.txt").read_text(encoding="utf-8").rstrip().split("\n\n")[1:]
]


@pytest.mark.parametrize("more, expected", PROBLEMS, ids=[expected.partition(": ")[0] for _, expected in PROBLEMS])
def test_each_problem_is_one_sentence(tmp_path, more, expected):
    assert said(tmp_path, more + "\n") == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("workload: a\nbase_model: tiny\nsources: {gateway: {url: ./logs}}\n", "sources.gateway.url: … did you mean uri?"),
        ("workload: a\nbase_model: tiny\nsources: {gateway: {path: ./logs}}\n", "sources.gateway.path: … did you mean uri?"),
        (SMALLEST + "evals: {gsm8k: {url: ./gsm8k}}\n", "evals.gsm8k.url: … did you mean uri?"),
        ("workload: a\nmodel: tiny\nsources: {a: {uri: b}}\n", "model: … did you mean base_model?"),
        ("workload: a\nbase_model: tiny\ndata: {a: {uri: b}}\n", "data: … did you mean sources?"),
        (SMALLEST + "speculator: {arch: eagle3}\n", "speculator.arch: … did you mean architecture?"),
        (SMALLEST + "sft: {warmup_steps: 8}\n", "sft.warmup_steps: … did you mean warmup_share?"),
        (SMALLEST + "curation: {judge: {url: http://a, model: m}}\n", "curation.judge.url: … did you mean base_url?"),
    ],
)
def test_a_key_of_the_same_section_is_meant_before_one_far_away(tmp_path, text, expected):
    found = [str(problem) for problem in problems(tmp_path, text)]
    assert expected.replace("…", "there is no such key;") in found


def test_problems_are_named_all_at_once_with_their_lines_in_the_order_of_the_file(tmp_path):
    text = SMALLEST + "sft:\n  steps: 0\n  rank: 8\nstudent: {layers: [1]}\nsft: {}\nspeculator:\n  answers:\n    prompts: -5\n"
    found = problems(tmp_path, text)
    expected = [(6, "sft.steps"), (7, "sft.rank"), (8, "student.layers"), (9, "sft"), (12, "speculator.answers.prompts")]
    assert [(problem.line, problem.key) for problem in found] == expected
    missing = problems(tmp_path, "threads: 0\n")
    expected = [(1, "threads"), (None, "workload"), (None, "base_model"), (None, "sources")]
    assert [(problem.line, problem.key) for problem in missing] == expected


def test_the_message_begins_with_file_and_line(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(SMALLEST + "\nsft:\n  rank: 8\n")
    with pytest.raises(RecipeProblemsError) as raised:
        load_recipe(path)
    assert str(raised.value) == f"{path} line 7: sft.rank: there is no such key; did you mean sft.lora.rank?"


def test_a_sentence_about_a_section_stands_at_the_line_of_the_key_it_names(tmp_path):
    [problem] = problems(tmp_path, SMALLEST + "sft:\n  steps: 3\n  lora: {rank: 8}\n")
    assert (problem.line, problem.key) == (7, "sft")


@pytest.mark.parametrize("more", [
    "sft: {learning_rate: 1e-3, tokens_per_step: 65_536, epochs: 2}",
    "curation: {language: {allow: [no, en]}}",
    "student: {enabled: no}",
    "student: {layers: 0.5}",
    "teacher: {base: sft, licence: mit, trains: student}\nstudent: {label_weight: 1}",
    "curation: {judge: null, min_quality: null}\nsft: {lora: null, steps: null}\nseeds:\nevals:",
    'first_day: "2026-06-01"\nlast_day: 2026-6-2',
    "release: {gates: {recovery: null}}",
    "sft: &t {steps: 3}\nstudent: {<<: *t, layers: 7}",
    "automation: {retrain: {cron: 0 3 * * mon-fri}}",
    "speculator: {architecture: eagle3, block_size: null, anchors: null}",
    "speculator: {enabled: false}\nrelease: {gates: {acceptance_length: 9}}",
])  # fmt: skip
def test_what_is_right_loads(tmp_path, more):
    path = tmp_path / "toy.yaml"
    path.write_text(SMALLEST + more + "\n")
    assert load_recipe(path).workload == "math-tutor"


def test_layers_of_a_base_in_a_directory_are_counted(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps({"text_config": {"num_hidden_layers": 6}}))
    text = SMALLEST.replace("tiny", "base")
    [problem] = problems(tmp_path, text + "student: {layers: 7}\n")
    assert "its teacher has 6" in problem.sentence
    for fine in ("student: {layers: 6}", "student: {layers: 7, enabled: false}"):
        (tmp_path / "fine.yaml").write_text(text + fine + "\n")
        assert load_recipe(tmp_path / "fine.yaml")


@pytest.mark.parametrize(
    "base, words",
    [
        ("TINY", "did you mean tiny?"),
        ("my model", "nor an id of the Hugging Face Hub"),
        ("a/b/c", "nor an id of the Hugging Face Hub"),
        ("~no-such-user-here/x", "base_model"),
        ("./" + "x" * 5000, "not a path on this machine"),
    ],
)
def test_a_base_that_is_nowhere(tmp_path, base, words):
    assert words in str(problems(tmp_path, SMALLEST.replace("tiny", base))[0])


def test_no_message_shows_a_secret(tmp_path):
    secret = "hunter2"
    judge = "curation: {judge: {base_url: 'http://a:hunter2@x/v1', model: m, api_key_env: sk-hunter2, prompt: [hunter2]}}"
    for text in (
        SMALLEST.replace("logs/", "s3://me:hunter2@bucket/x"),
        SMALLEST + judge,
        SMALLEST.replace("{uri: logs/}", "'s3://me:hunter2@bucket'"),
        SMALLEST + "threads: s3://me:hunter2@b\n",
        SMALLEST + "sft: {preset: sk-hunter2}\n",
        SMALLEST + "'s3://me:hunter2@b': 1\n",
        SMALLEST.replace("gateway", '"s3://me:hunter2@b"'),
        SMALLEST.replace("{uri: logs/}", "{uri: [hunter2]}"),
    ):
        assert problems(tmp_path, text)
        assert not any(secret in str(problem) for problem in problems(tmp_path, text)), text


@pytest.mark.parametrize("value", thorough_except(VALUES[8:9], VALUES), ids=repr)
def test_any_value_of_any_key_loads_or_is_answered_in_clean_sentences(tmp_path, value):
    path = tmp_path / "toy.json"
    for key in unlike_keys():
        content, dotted = recipe_with(key, value)
        path.write_text(json.dumps(content))
        try:
            load_recipe(path)
        except RecipeProblemsError as error:
            for problem in error.problems:
                assert not UNCLEAN.search(str(problem)), (dotted, value, problem)
                assert problem.key and problem.line == 1, (dotted, value, problem)
            assert any(
                problem.key.startswith((dotted, dotted.rpartition(".")[0])) or dotted in problem.sentence
                for problem in error.problems
            ), (dotted, value, error)


def test_every_misspelt_key_finds_its_way_back(tmp_path):
    lost = []
    for key in unlike_keys()[::2]:
        if len(key.name) < 5 or ANY_NAME in key.path[-1:]:
            continue
        content, dotted = recipe_with(key, 1)
        at = content
        *above, name = dotted.split(".")
        for part in above:
            at = at[part]
        del at[name]
        at[name[:2] + name[3:]] = 1
        path = tmp_path / "toy.json"
        path.write_text(json.dumps(content))
        with pytest.raises(RecipeProblemsError) as raised:
            load_recipe(path)
        if f"did you mean {name}?" not in str(raised.value):
            lost.append(dotted)
    assert lost == []


def test_what_is_accepted_is_said_of_every_key():
    for key in keys_of(Recipe):
        words = accepted(key.annotation, key.field.metadata)
        assert words and not UNCLEAN.search(words), (key.dotted, words)


def test_dagster_and_the_check_of_schedules_agree():
    import dagster as dg

    def takes(schedule):
        try:
            dg.ScheduleDefinition(job_name="any", cron_schedule=schedule)
        except dg.DagsterInvalidDefinitionError:
            return False
        return True

    from pipelines.contract.fields import checked_cron

    for minute, hour, day in itertools.product(
        ("*", "5", "*/15", "0,30", "60", "x"), ("3", "24", "1-5"), ("*", "31", "0", "L")
    ):
        schedule = f"{minute} {hour} {day} * *"
        try:
            ours = bool(checked_cron(schedule))
        except ValueError:
            ours = False
        assert ours == takes(schedule), schedule


def test_a_damaged_recipe_loads_or_is_answered_in_clean_sentences(tmp_path):
    whole = (RECIPES / "demo.yaml").read_text(encoding="utf-8")
    scraps = [
        *"abc:{}[]-#&*!|>'\"%@`,?\t\n 0.\\~<",
        "null",
        "---\n",
        "<<: ",
        "é",
        "😀",
        "\x85",
        "- ",
        "? ",
        "!!str ",
        "&a ",
        "*a",
    ]
    dice = random.Random(7)
    path = tmp_path / "toy.yaml"
    for _ in range(150):
        at = dice.randrange(len(whole))
        path.write_text(whole[:at] + dice.choice(scraps) + whole[at + dice.choice((0, 0, 1, 5)) :], encoding="utf-8")
        try:
            load_recipe(path)
        except RecipeProblemsError as error:
            assert error.problems
            for problem in error.problems:
                said = re.sub(r"'[^']*'", "", str(problem))  # a key in quotes is the recipe's own text
                assert not UNCLEAN.search(said), (problem, path.read_text(encoding="utf-8"))


def test_answers_with_log_probabilities_keep_their_reasoning(tmp_path):
    teacher = "teacher: {base_url: 'http://a/v1', model: m, licence: x, logprobs: 5}\nstudent: {teacher: answers}\n"
    [problem] = said(tmp_path, "datasets: {sft: {thinking: strip}}\n" + teacher)
    assert "datasets.sft.thinking: it is strip" in problem and "set it to keep" in problem
    (tmp_path / "toy.yaml").write_text(SMALLEST + teacher)
    assert load_recipe(tmp_path / "toy.yaml").student.teacher == "answers"


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


@pytest.mark.parametrize(
    "text, line, words",
    [
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
        (
            "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d]\n",
            None,
            "aliases",
        ),
        (b"\xff\xfea\x00:\x00", None, "it is UTF-16; save it as UTF-8"),
        (b"a: 1\nb: \xe4\n", 2, "this is no UTF-8"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00", 1, "cannot be read as text"),
        ("# padding\n" * 120_000, None, "1.2 MB"),
    ],
)
def test_what_is_no_recipe_is_said_with_its_line(tmp_path, text, line, words):
    problem = refused(tmp_path, text)
    assert words in problem.sentence
    assert problem.line == line
    assert "\n" not in problem.sentence and "expected <" not in problem.sentence


@pytest.mark.parametrize(
    "text, key, words",
    [
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
    ],
)
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
