"""`millrace init`: what it writes loads, its paths and names survive, and wrong input is one sentence."""

import json
import shutil
from datetime import UTC, date, datetime
from io import StringIO

import pytest
import yaml
from rich.console import Console

from pipelines.contract.base_choice import BaseModelError, look_at_base
from pipelines.contract.recipe import load_recipe
from pipelines.init.recipe_file import InitError, RecipeWishes, ask, check_name, check_uri, print_new_recipe, write_recipe
from pipelines.init.recipe_text import place, plain, scalar, suites_of
from resources.inspecting.overview import FirstLook
from resources.inspecting.source_survey import SourceProposal, survey
from resources.sources.listing import LogObject
from tests.resources.inspecting.test_survey import PAIR, put
from tests.thorough_cases import thorough_except

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("init")]


@pytest.fixture(scope="module")
def traffic(tmp_path_factory):
    from pipelines.demo.traffic import write_traffic

    home = tmp_path_factory.mktemp("init")
    write_traffic(home / "traffic", interactions=150, days=2, first_day=date(2026, 6, 1))
    return home / "traffic"


@pytest.fixture(scope="module")
def made(traffic):
    return write_recipe(RecipeWishes([str(traffic)], traffic.parent / "made.yaml", workload="helper"))


def test_the_recipe_loads_and_names_what_was_found(made, traffic):
    recipe = load_recipe(made.path)
    assert recipe.workload == "helper" and recipe.base_model == "tiny"
    assert set(recipe.sources) == {"gateway", "litellm", "feedback"}
    assert recipe.sources["gateway"].uri == str(traffic / "gateway")
    assert set(recipe.seeds) == {"seeds"} and set(recipe.evals) == {"heldout_functions"}
    assert str(recipe.first_day) == "2026-06-01" and recipe.last_day is None
    assert recipe.sft.max_length in (512, 1024, 2048)


def test_paths_inside_its_folder_are_relative_and_every_value_has_a_comment(made):
    text = made.path.read_text()
    assert "uri: traffic/gateway\n" in text and str(made.path.parent) not in text
    for words in (
        "tiny is a toy",
        "records of feedback",
        "Personal data was found",
        "requests stay",
        "A draft model",
        "Left out",
    ):
        assert words in text, words
    assert all(len(line) <= 128 for line in text.splitlines())


@pytest.mark.parametrize(("lake", "said"), [
    (None, ["millrace check made.yaml --lake ./lake  #", "millrace ui made.yaml --lake ./lake     #"]),
    ("/data/lake", ["millrace check made.yaml  #", "millrace ui made.yaml     #", "The lake is /data/lake (MILLRACE_LAKE)."]),
])  # fmt: skip
def test_the_commands_that_it_ends_with_name_the_lake_that_they_would_take(made, monkeypatch, lake, said):
    monkeypatch.chdir(made.path.parent)
    monkeypatch.setenv("MILLRACE_LAKE", lake) if lake else monkeypatch.delenv("MILLRACE_LAKE", raising=False)
    printed = StringIO()
    print_new_recipe(made, Console(file=printed, width=120))
    for words in said:
        assert words in printed.getvalue()
    assert ("--lake" in printed.getvalue()) is (lake is None)


def test_it_never_replaces_a_recipe_without_being_told_to(made, traffic):
    before = made.path.read_text()
    with pytest.raises(InitError, match=r"exists; give another --output, or --force"):
        write_recipe(RecipeWishes([str(traffic)], made.path, workload="other"))
    assert made.path.read_text() == before
    with pytest.raises(InitError, match="is a directory"):
        write_recipe(RecipeWishes([str(traffic)], made.path.parent))
    assert [path.name for path in made.path.parent.iterdir() if path.name.startswith(".")] == []


ODD = ['odd: #1 "q"', "it's - ü", "[a]*{b}", "? yes", "%d\\n"]


@pytest.mark.parametrize("name", thorough_except(ODD[:2], ODD))
def test_odd_folders_are_read_back_as_they_were(tmp_path, name):
    logs = tmp_path / name / "logs.jsonl"
    logs.parent.mkdir()
    rows = [{"prompt": f"what is {number} and {number * 7}?", "completion": f"it is {number * 13}"} for number in range(40)]
    logs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    home = tmp_path / "recipe of it"
    recipe = load_recipe(write_recipe(RecipeWishes([str(logs)], home / "r.yaml", workload="odd", sample=100)).path)
    assert [source.uri for source in recipe.sources.values()] == [str(logs)]


def test_logs_with_nothing_to_train_on_are_written_and_said(tmp_path):
    (tmp_path / "failed.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "request": {"model": "m", "messages": [{"role": "user", "content": f"q{number}"}]},
                    "response": {"id": f"r{number}", "error": {"message": "down"}, "choices": []},
                    "status": 500,
                }
            )
            + "\n"
            for number in range(5)
        )
    )
    try:
        made = write_recipe(RecipeWishes([str(tmp_path)], tmp_path / "r.yaml", workload="failed"))
    except InitError as error:  # no row at all: then nothing is written
        assert "no request with an answer" in str(error) or "no log" in str(error) or "no record" in str(error)
        assert not (tmp_path / "r.yaml").exists()
    else:
        assert made.trainable == 0 and load_recipe(made.path).workload == "failed"


def test_only_feedback_or_nothing_known_is_one_sentence(traffic, tmp_path):
    with pytest.raises(InitError, match="there is only feedback; name the logs"):
        write_recipe(RecipeWishes([str(traffic / "feedback")], tmp_path / "a.yaml"))
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(InitError, match="no log of a known format") as said:
        write_recipe(RecipeWishes([str(tmp_path / "x.json")], tmp_path / "a.yaml"))
    assert "\n" not in str(said.value)
    with pytest.raises(InitError, match=r"^there is no file or directory"):
        write_recipe(RecipeWishes([str(tmp_path / "nowhere")], tmp_path / "a.yaml"))
    assert not (tmp_path / "a.yaml").exists()


def test_credentials_in_a_uri_are_refused_without_showing_them():
    with pytest.raises(InitError, match="carries credentials") as said:
        check_uri("s3://key:hunter2@bucket/logs")
    assert "hunter2" not in str(said.value)


@pytest.mark.parametrize("name", ["Bad", "a b", "", "-a", "a" * 64])
def test_names_that_no_recipe_takes(name):
    with pytest.raises(InitError, match="workload"):
        check_name(name)


def test_base_models(tmp_path):
    assert look_at_base("tiny").context == 2048
    assert look_at_base("Qwen/Qwen3-0.6B").kind == "hub"
    for name in ("./nowhere", "nowhere", "a/b/c"):
        with pytest.raises(BaseModelError, match="base model"):
            look_at_base(name, tmp_path)
    with pytest.raises(BaseModelError, match=r"no config\.json"):
        look_at_base(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gemma2", "num_hidden_layers": 26, "max_position_embeddings": 8192}')
    base = look_at_base(str(tmp_path))
    assert (base.kind, base.layers, base.context, base.served) == ("directory", 26, 8192, True)
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    assert look_at_base(str(tmp_path)).served is False  # in no table


def test_questions_are_asked_again_until_answered(monkeypatch, traffic):
    from rich.console import Console

    monkeypatch.chdir(traffic.parent)
    answers = iter(["/nowhere", "", "nosuch", "", "Bad Name", "asked"])
    monkeypatch.setattr("builtins.input", lambda: next(answers))
    with (traffic.parent / "said").open("w+") as said:
        wanted = ask(RecipeWishes([]), False, Console(file=said, width=120), True)
        said.seek(0)
        text = said.read()
    assert (wanted.uris, wanted.base_model, wanted.workload) == (["./traffic"], "tiny", "asked")
    assert "there is no file or directory /nowhere" in text and "base model nosuch" in text and "workload 'Bad Name'" in text


def test_without_a_terminal_nobody_is_asked():
    with pytest.raises(InitError, match="no terminal to ask at"):
        ask(RecipeWishes([]), False, None, False)


@pytest.mark.parametrize(
    "value", ["a: b", "# no comment", "yes", "0123", "'", '"', "*x", "ü\u2028", "a\nb", "~", "2026-06-01", ""]
)
def test_scalars_come_back_as_they_were(value):
    assert "\n" not in scalar(value)
    assert yaml.safe_load(f"key: {scalar(value)}\n") == {"key": value}


def test_places_and_words_for_comments(tmp_path):
    assert place(str(tmp_path / "a" / "b"), tmp_path) == "a/b"
    assert place(str(tmp_path), tmp_path) == str(tmp_path)
    assert place("s3://b/x", tmp_path) == "s3://b/x"
    assert place(str(tmp_path / "~x"), tmp_path) == "./~x"
    assert plain("a\n# b\x1b[31m" + "c" * 100, 20) == "a # b [31mccccccc..."


@pytest.mark.slow
def test_init_check_and_load_of_real_logs(shared, cli, tmp_path):
    shutil.copy(shared / "data" / "tau_airline.json", tmp_path / "tau.json")
    said = cli("init", tmp_path / "tau.json", "--output", tmp_path / "tau.yaml").stdout
    assert "2,454 requests" in said and "millrace check" in said and "millrace run" in said
    recipe = load_recipe(tmp_path / "tau.yaml")
    assert recipe.workload == "tau" and recipe.sources["tau"].uri == str(tmp_path / "tau.json")
    report = json.loads(cli("check", tmp_path / "tau.yaml", "--no-plan", "--format", "json").stdout)
    assert report["ok"] and any(finding["check"] == "source tau" for finding in report["findings"])
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize(("uri", "first", "named"), [
    ("s3://b/prod/evals", "s3://b/prod/evals/suite.jsonl", "s3://b/prod/evals/*"),
    ("s3://b/prod/evals.jsonl", "s3://b/prod/evals.jsonl", "s3://b/prod/evals.jsonl"),
])  # fmt: skip
def test_a_folder_of_suites_is_a_pattern_wherever_it_lies(made, tmp_path, uri, first, named):
    from dataclasses import replace

    from pipelines.init.recipe_text import recipe_text
    from resources.inspecting.overview import FirstLook
    from resources.inspecting.source_survey import SourceProposal
    from resources.sources.listing import LogObject

    suite = SourceProposal(
        "suite", uri, "evals", FirstLook([LogObject("logs", first, 1, "", datetime(2026, 6, 1, tzinfo=UTC))])
    )
    text = recipe_text(replace(made.contents, sources=[*made.contents.of("logs"), suite]))
    assert yaml.safe_load(text)["evals"] == {"suite": {"uri": named}}


def test_stars_get_a_least_good_value(tmp_path):
    chat = {"messages": [{"role": "user", "content": "how do I reset it"}]}
    with (tmp_path / "log.jsonl").open("w") as log:
        for number in range(20):
            said = {"choices": [{"message": {"role": "assistant", "content": f"press the button {number} times"}}]}
            log.write(json.dumps({"request": chat, "response": said, "stars": 1 + number % 5}) + "\n")
    made = write_recipe(RecipeWishes([str(tmp_path)], tmp_path / "made.yaml", workload="helper"))
    assert load_recipe(made.path).curation.feedback.least == {"stars": 4}


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
