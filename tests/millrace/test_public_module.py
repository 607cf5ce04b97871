"""The public module: what it exports, how fast it is imported, what it reads, and in what words it refuses."""

import inspect
import json
import subprocess
import sys

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import millrace
from model_ops.speculators.serving import DrafterServing, VllmOptions
from resources.artefacts.registry import Registry
from resources.catalog.build import rebuild
from resources.digests.code import PACKAGES
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.releases.gate_result import GateResult
from resources.releases.release import write_release
from resources.reporting.side_by_side import differences
from tests.conftest import PROJECT
from tests.resources.interaction_rows import interaction, store


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """A lake with three interactions on two days, and two versions of a dataset."""
    place = LakeLayout.open(tmp_path_factory.mktemp("public") / "lake")
    store(
        Tables(place),
        "interactions",
        [interaction(1, "a", "b"), interaction(2, "c", "d", model="large"), interaction(3, "e", "f", day=1)],
    )
    registry = Registry(place, "tutor")
    for number in (1, 2):
        draft = registry.draft("dataset", "sft_dataset", "build_sft_dataset", ("resources/stages/table.py",), {"n": number}, [])
        for split, rows in (("train", 3), ("test", 1)):
            pq.write_table(pa.table({"row": list(range(rows)), "n": [number] * rows}), draft.directory / f"{split}.parquet")
        registry.finish(draft, {})
    rebuild(place)
    return millrace.open_lake(place.root)


def test_importing_it_takes_no_library_of_weight():
    heavy = ["torch", "dagster", "duckdb", "polars", "pyarrow", "pydantic", "numpy", "yaml"]
    script = (
        f"import sys, json, millrace; dir(millrace); print(json.dumps([name for name in {heavy!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_submitting_imports_no_torch_and_no_dagster():
    script = "import sys, json, millrace; millrace.submit, millrace.open_lake; print('torch' in sys.modules or 'dagster' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_all_that_is_exported_is_there_and_says_what_it_is():
    for name in millrace.__all__:
        found = getattr(millrace, name)
        assert name in dir(millrace) and inspect.getdoc(found), name
    for name, method in inspect.getmembers(millrace.Lake, inspect.isfunction):
        assert name.startswith("_") or len(inspect.getdoc(method)) > 40, name
    with pytest.raises(AttributeError, match="has no attribute 'opne_lake'; there are Error, Lake, Outcome"):
        _ = millrace.opne_lake


@pytest.mark.parametrize("query", ["select 1 as a, 2 as a", "select interval 1 day as i", "select union_value(a := 1) as u"])
def test_a_result_that_no_frame_can_hold_is_an_error_and_an_arrow_table(lake, query):
    with pytest.raises(millrace.Error, match="arrow=True"):
        lake.sql(query)
    assert lake.sql(query, arrow=True).num_rows == 1


@pytest.mark.parametrize("wrong", [{"select": "sft_model"}, {"select": []}, {"partition": "2026-06-01"}])
def test_a_selection_or_day_of_the_wrong_kind_starts_nothing(tmp_path, wrong):
    with pytest.raises(millrace.Error, match=r"select is a list|partition is a datetime\.date"):
        millrace.submit("shop.yaml", lake=tmp_path / "lake", **wrong)
    assert not (tmp_path / "lake").exists()


def test_no_module_of_the_project_imports_it():
    for package in set(PACKAGES) - {"millrace"}:
        for path in (PROJECT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "import millrace" not in text and "from millrace" not in text, path


def test_sql_gives_polars_or_arrow_and_takes_parameters(lake):
    query = "select model, count(*) as rows from interactions where workload = ? group by model order by model"
    frame = lake.sql(query, ["tutor"])
    assert isinstance(frame, pl.DataFrame) and frame.rows() == [("large", 1), ("m", 2)]
    table = lake.sql(query, ["tutor"], arrow=True)
    assert isinstance(table, pa.Table) and table.to_pylist() == frame.to_dicts()


def test_tables_are_lazy_and_hold_what_sql_shows(lake):
    frame = lake.table("interactions")
    assert isinstance(frame, pl.LazyFrame) and frame.collect_schema().names() == SCHEMAS["interactions"].names
    seen = frame.filter(pl.col("dt") == pl.date(2026, 6, 2)).select("interaction_id", "workload").collect()
    assert seen.rows() == [("i3", "tutor")]
    assert frame.collect().height == lake.sql("select count(*) as n from interactions")["n"][0] == 3


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name not in ("decisions", "feedback")])
def test_a_table_that_nothing_was_written_to_has_its_columns(lake, name):
    assert lake.table(name).collect_schema().names() == SCHEMAS[name].names


def test_decisions_are_those_in_force_and_their_history_is_a_table_of_its_own(lake):
    assert lake.table("decisions").collect().columns == lake.sql("from decisions").columns
    assert lake.table("decisions_history").collect_schema().names() == SCHEMAS["decisions"].names
    assert lake.table("feedback_records").collect_schema().names() == SCHEMAS["feedback"].names
    assert lake.table("feedback").collect_schema().names() == [*SCHEMAS["feedback"].names, "user_hash"]


def test_older_files_that_lack_a_column_are_read_with_it(tmp_path):
    place = LakeLayout.open(tmp_path / "lake")
    store(Tables(place), "interactions", [interaction(1, "a", "b")])
    folder = next(place.table("interactions").glob("workload=*/dt=*"))
    file = next(folder.glob("*.parquet"))
    pq.write_table(pq.read_table(file, partitioning=None).drop_columns(["cost"]), file)
    frame = millrace.open_lake(place.root).table("interactions").select("interaction_id", "cost").collect()
    assert frame.rows() == [("i1", None)]


def test_datasets_by_split_and_version(lake):
    assert lake.dataset("tutor/sft_dataset", split="train").collect().height == 3
    whole = lake.dataset("tutor/sft_dataset").collect()
    assert whole.group_by("split").len().sort("split").rows() == [("test", 1), ("train", 3)]
    assert set(whole["n"]) == {2}
    first = lake.artefacts().filter(pl.col("is_current").not_())["version"].item()
    assert set(lake.dataset("tutor/sft_dataset", version=first).collect()["n"]) == {1}
    assert lake.dataset("sft_dataset").collect().equals(whole)  # as `millrace diff` takes it
    assert lake.dataset("sft_dataset", version="current").collect().equals(whole)
    assert lake.directory(f"tutor/sft_dataset@{first}").name == first


def test_what_is_not_there_is_one_sentence(lake, tmp_path):
    def said(do, code=2):
        with pytest.raises(millrace.Error) as refused:
            do()
        assert refused.value.exit_code == code and len(str(refused.value).splitlines()) == 1
        return str(refused.value)

    assert "no lake at" in said(lambda: millrace.open_lake(tmp_path / "none"))
    assert "no table or view interactionss" in said(lambda: lake.table("interactionss"))
    assert "has no split valid; there are test, train" in said(lambda: lake.dataset("tutor/sft_dataset", split="valid"))
    assert "no artefact tutor/none" in said(lambda: lake.lineage("tutor/none"))
    assert "has the id none" in said(lambda: lake.why("none"), code=1)
    assert "Referenced column" in said(lambda: lake.sql("select nothing from interactions"))
    assert "has no run" in said(lambda: lake.run("none"))
    assert "no lake is named" in said(lambda: millrace.submit(recipe_of({}, tmp_path)))


def recipe_of(more, base):
    return millrace.load_recipe(
        {"workload": "shop", "base_model": "tiny", "sources": {"gateway": {"uri": "logs"}}, **more}, base
    )


def test_a_wrong_recipe_says_each_problem(tmp_path):
    with pytest.raises(millrace.RecipeError) as refused:
        recipe_of({"sft": {"stps": 3}, "thread": 2}, tmp_path)
    assert {key: line for key, _, line in refused.value.problems} == {"sft.stps": None, "thread": None}
    with pytest.raises(millrace.RecipeError, match="the recipe line 3"):
        millrace.load_recipe("workload: shop\nbase_model: tiny\nsorces: {}\n")
    with pytest.raises(millrace.RecipeError, match="there is no recipe at this path"):
        millrace.load_recipe(tmp_path / "none.yaml")
    assert recipe_of({}, tmp_path).sources["gateway"].uri == str(tmp_path / "logs")


def test_bugs_stay_what_they_are(lake, monkeypatch):
    import pipelines.asking.bounded

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(pipelines.asking.bounded, "bounded_question", broken)
    with pytest.raises(ZeroDivisionError):
        lake.sql("from relations")


def test_lineage_and_verify(lake):
    assert lake.lineage("tutor/sft_dataset").columns[:3] == ["depth", "child", "parent"]
    assert lake.verify("tutor/sft_dataset") == []
    file = lake.directory("tutor/sft_dataset") / "test.parquet"
    content = file.read_bytes()
    file.write_bytes(content + b"x")
    assert any("test.parquet" in problem for problem in lake.verify("tutor/sft_dataset"))
    file.write_bytes(content)


WORDS = ["[UNK]", "a", "small", "big", "cat", "<b>", "draw"]


def tokens(text):
    return [WORDS.index(word) for word in text.split()]


def release(lake, number, answers, champion=None, beside=()):
    """A finished release whose drafter learnt these answers: row_id -> answer."""
    registry = Registry(lake, "tutor")

    def finished(kind, name, inputs, fill, config=None):
        draft = registry.draft(
            kind,
            name,
            name,
            ("model_ops/jobs/job.py",),
            {"number": number, **(config or {})},
            [each.as_input() for each in inputs],
        )
        fill(draft.directory)
        return registry.finish(draft, {})

    def target_files(home):
        tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = Whitespace()
        tokenizer.save(str(home / "tokenizer.json"))
        for name in ("config.json", "chat_template.jinja", "model.safetensors"):
            (home / name).write_text("{}")

    rows = [
        {"row_id": row, "turn": 0, "prompt_token_ids": tokens("draw a cat"), "answer_token_ids": tokens(said)}
        for row, said in answers.items()
    ]
    target = finished("model", "sft_model", [], target_files)
    learnt = finished(
        "dataset",
        "speculator_dataset",
        [target],
        lambda home: pq.write_table(pa.Table.from_pylist(rows), home / "train.parquet"),
    )
    drafter = finished("model", "speculator", [target, learnt], lambda home: (home / "model.safetensors").write_text("{}"))
    report = finished(
        "dataset",
        "evaluation_report",
        [target, drafter],
        lambda home: (home / "side_by_side.jsonl").write_text("".join(json.dumps(line) + "\n" for line in beside)),
    )
    gate, serving = (
        GateResult(name="recovery", wanted=0.99, measured=0.999, passed=True),
        DrafterServing("eagle3", VllmOptions("eagle3")),
    )
    made = finished(
        "release",
        "release",
        [target, drafter, report],
        lambda home: write_release(home, "tutor", target, drafter, 3, [gate], serving),
        {"champion": champion},
    )
    return made.version


@pytest.fixture
def two(tmp_path):
    """A lake with two releases, the second compared with the first when it was made."""
    lake = LakeLayout.open(tmp_path / "lake")
    first = release(lake, 1, {f"r{each}": "a small cat" for each in range(60)})
    line = {
        "row_id": "held",
        "kind": "gain",
        "prompt": [{"role": "user", "text": "draw a cat"}],
        "logged": "as logged",
        "target": "new <b>",
        "champion": "old",
    }
    second = release(
        lake,
        2,
        {f"r{each}": "a big cat" if each % 2 else "a small cat" for each in range(10, 90)},
        first,
        [line, {**line, "row_id": "r11"}],
    )
    return millrace.open(tmp_path / "lake"), first, second


def test_greedy_answers_come_first_and_sampled_ones_fill_up(two):
    lake, first, second = two
    frame = lake.side_by_side(first[:6], second, prompts=50).frame
    assert frame.height == 50 and frame["how"].to_list()[:3] == [
        "greedy, held out",
        "greedy, held out",
        "sampled, for the drafter",
    ]
    assert frame.row(0, named=True) == {
        "row_id": "held",
        "turn": -1,
        "how": "greedy, held out",
        "prompt": "user: draw a cat",
        "logged": "as logged",
        "before": "old",
        "after": "new <b>",
        "same": False,
    }
    assert frame["row_id"].n_unique() == 50  # r11 is shown once
    assert set(frame.filter(frame["how"] != "greedy, held out")["after"]) == {"a big cat", "a small cat"}
    back = lake.side_by_side(second, first, prompts=1).frame.row(0, named=True)
    assert (back["before"], back["after"]) == ("new <b>", "old")
    assert lake.side_by_side(first, second, prompts=3).frame.equals(frame.head(3))


def test_the_page_marks_differences_and_escapes_what_models_said(two, tmp_path):
    lake, first, second = two
    found = lake.side_by_side(first, second)
    page = found.html(tmp_path / "answers.html").read_text()
    assert "<del>small</del> cat" in page and "a <ins>big</ins> cat" in page
    assert "<ins>new &lt;b&gt;</ins>" in page and "new <b>" not in page
    assert "<b>50 prompts</b>" in page and "<script" not in page and "http" not in page
    assert found._repr_html_() in page and repr(found) == f"<50 prompts answered by {first} and {second}>"


def test_what_cannot_be_compared_is_one_sentence(two):
    lake, first, second = two
    for words, said in (
        ((first, first), "is named twice"),
        ((first, "ffffff"), "names no release"),
        ((first, second, 0), "give 1 or more"),
    ):
        with pytest.raises(millrace.Error, match=said):
            lake.side_by_side(*words)
    other = release(LakeLayout.open(lake.path), 3, {"x": "a cat"})
    with pytest.raises(millrace.Error, match="no prompt is known that both"):
        lake.side_by_side(first, other)


def test_differences_are_word_by_word_and_keep_both_texts():
    left, right = differences("a small cat & dog", "a big cat & dog!")
    assert left == "a <del>small</del> cat &amp; dog" and right == "a <ins>big</ins> cat &amp; dog<ins>!</ins>"
    assert differences("same", "same") == ("same", "same") and differences("", "x") == ("", "<ins>x</ins>")
    assert "\\u202e" in differences("a\u202eb", "")[0]
