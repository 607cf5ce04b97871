"""`millrace rescore`: kept answers graded again, old grades beside new ones, and what an erasure takes from both."""

import csv
import io
import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from model_ops.answers import RESCORED_ROWS
from model_ops.jobs import Job, Progress
from model_ops.operations import rescore, rft
from pipelines.asking.rescoring import print_rescored
from pipelines.contract.recipe import read_recipe
from resources.artefacts.registry import Registry
from resources.catalog.catalog import query
from resources.erasing.artefact_rows import erase_rows, rows_in_artefacts
from resources.lake import attach_parquet, rows, workbench
from resources.manifests.manifest import changed_files, read_manifest
from resources.releasing.attestations import _served_files
from resources.signing.release_signature import _files_of
from tests.command import millrace
from tests.pipelines.graph.test_rft_stage import REWARDED, prompts
from tests.pipelines.graph.test_second_sft import InProcess, lake  # noqa: F401

LEARNING = {
    "grader": {"parts": {"letters": {"by": "verifier"}, "brief": {"by": "length", "most_tokens": 4, "weight": 0.0}}},
    "steps": 2, "prompts_per_step": 3, "answers": 4, "max_new_tokens": 8, "max_length": 64, "learning_rate": 1e-3,
    "held_out_prompts": 0, "overlong": "none",
}  # fmt: skip


@pytest.fixture
def trained(lake, tmp_path, monkeypatch):  # noqa: F811
    """(lake, directory of an rft_model, a function that writes the recipe with another grader)."""
    registry = Registry(lake, "tutor")
    base, asked = registry.current("model", "base_model"), prompts(registry)
    settings = read_recipe({**REWARDED, "rft": LEARNING}, tmp_path).rft.resolved()
    config = settings.model_dump(mode="json")
    draft = registry.draft("model", "rft_model", "rft", ("model_ops/jobs/job.py",), config, [base.as_input(), asked.as_input()])
    inputs = {"model": registry.directory(base), "prompts": registry.directory(asked)}
    made = registry.finish(
        draft, rft.run(Job(operation="rft", inputs=inputs, output=draft.directory, settings=config), Progress())
    )

    class Here(InProcess):
        def __init__(self, worker_log):
            assert worker_log.is_relative_to(lake.root), "a worker's tracebacks are not for the terminal"
            super().__init__()

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def run(self, job, context):
            job.output.mkdir(parents=True, exist_ok=True)
            return super().run(job, context)

    monkeypatch.setattr("resources.launching.LocalLauncher", Here, raising=False)

    def recipe(grader):
        path = tmp_path / "recipe.yaml"
        path.write_text(json.dumps({**REWARDED, "rft": {**LEARNING, "grader": grader}}))
        return path

    return lake, registry.directory(made), recipe


def test_stored_answers_are_graded_again_and_old_grades_stay(trained, tmp_path):
    lake, model, recipe = trained  # noqa: F811
    before = pq.read_table(model / "rollouts.parquet").to_pylist()
    assert len(before) == 24 and all(row["text"] for row in before if row["tokens"] > 1)
    (tmp_path / "rewards.py").write_text("def grade(answer):\n    return 1.0 if 'a' in answer else 0.0\n")
    changed = recipe(
        {"parts": {"letters": {"by": "rewards.py:grade"}, "brief": {"by": "length", "most_tokens": 4, "weight": 0.0}}}
    )
    done = millrace("rescore", changed, "--lake", lake.root, "--format", "json")
    whole, brief, letters = json.loads(done.stdout)
    was, now = [row["grade"] >= 1 for row in before], ["a" in row["text"] for row in before]
    assert [each["part"] for each in (whole, brief, letters)] == ["(all)", "brief", "letters"]
    assert (whole["answers"], whole["ungraded"]) == (24, 0) and brief["old"] == brief["new"]
    assert whole["old"] == pytest.approx(sum(was) / 24, abs=1e-4) and whole["new"] == pytest.approx(sum(now) / 24, abs=1e-4)
    assert whole["passes"] == sum(b and not a for a, b in zip(was, now, strict=True))
    assert whole["fails"] == sum(a and not b for a, b in zip(was, now, strict=True)) > 0
    assert [each[column] for each in (letters, brief) for column in ("passes", "fails")] == [None] * 4, "of the grade alone"
    said = "select row_id, answer, grade, old_grade, parts['letters'] as letters from tutor_rescored_answers"
    stored = query(lake, said).to_pylist()
    expected = [(row["row_id"], row["answer"], row["grade"]) for row in before]
    assert [(row["row_id"], row["answer"], row["old_grade"]) for row in stored] == expected
    assert [row["grade"] for row in stored] == [row["letters"] for row in stored] == [float(each) for each in now]
    assert pq.read_table(model / "rollouts.parquet").to_pylist() == before, "not over the old grades"


def test_a_function_of_trl_knows_the_step_of_kept_answers():
    prompt = SimpleNamespace(row_id="r", messages=[], tools=None, columns={})
    reader = SimpleNamespace(read_text=lambda *_: ("answer", True))
    rows = [{"text": "a", "tokens": 1, "ended": True, "version": version} for version in (3, 4)]
    asked = rescore.asked_group(prompt, rows, reader)
    assert (asked.answers, asked.training) == (["answer"] * 2, {"global_step": 4})


def test_means_are_of_answers_that_have_both_grades_and_missing_ones_are_counted(tmp_path):
    answers = [({"gone": 1.0, "half": 0.0}, {"half": 0.5, "added": 4.0}), ({"gone": 3.0, "half": 1.0}, {"added": 2.0})]
    answers += [({}, {"half": 9.0})]  # of no grade in the training
    rescored = pa.Table.from_pylist(
        [
            {"grade": new.get("half"), "old_grade": old.get("half"), "parts": list(new.items()), "old_parts": list(old.items())}
            for old, new in answers
        ],
        schema=pa.schema([RESCORED_ROWS.field(name) for name in ("grade", "old_grade", "parts", "old_parts")]),
    )
    pq.write_table(rescored, tmp_path / "rescored.parquet")
    with workbench() as connection:
        attach_parquet(connection, "rescored", tmp_path / "rescored.parquet")
        found = {
            row["part"]: row
            for row in rows(connection, "reporting/rescored_by_part", parts=["half", "never"], passing=1.0).to_pylist()
        }
    numbers = {part: (row["answers"], row["ungraded"], row["old"], row["new"]) for part, row in found.items()}
    both = (3, 1, 0, 0.5)
    expected = {"(all)": both, "half": both, "gone": (3, 3, 2, None), "added": (3, 1, None, 3), "never": (3, 3, None, None)}
    assert numbers == expected


def test_the_same_grader_asks_nothing_twice_and_a_changed_file_is_another_one(trained, tmp_path):
    lake, _, recipe = trained  # noqa: F811
    (tmp_path / "rewards.py").write_text("def grade(answer):\n    open(__file__ + '.asked', 'a').write('.')\n    return 1.0\n")
    path = recipe("rewards.py:grade")
    first = millrace("rescore", path, "--lake", lake.root).stdout
    assert "Of 24 answers, " in first
    again = millrace("rescore", path, "--lake", lake.root, "--format", "csv").stdout
    assert (tmp_path / "rewards.py.asked").read_text() == "." * 24
    assert next(csv.DictReader(io.StringIO(again)))["new"] == "1.0"
    (tmp_path / "rewards.py").write_text("def grade(answer):\n    return 0.0\n")
    again = millrace("rescore", path, "--lake", lake.root, "--format", "csv").stdout
    assert next(csv.DictReader(io.StringIO(again)))["new"] == "0.0"
    (tmp_path / "rewards.py").write_text("def grade(answer):\n    raise ValueError(answer)\n")
    said = millrace("rescore", path, "--lake", lake.root, check=1).stderr
    assert "the grader failed on 16 of 16 answers" in said and "Traceback" not in said


def test_the_table_fits_80_columns():
    names = ("part", "answers", "ungraded", "old", "new", "passes", "fails")
    rows = pa.Table.from_pylist([dict(zip(names, (part, 51200, 120, 0.1234, 0.5678, *changed), strict=True))
                                 for part, changed in (("(all)", (1234, 567)), ("a_part_with_a_name", (None, None)))])  # fmt: skip
    console = Console(width=80, force_terminal=True, file=io.StringIO(), color_system=None)
    print_rescored(SimpleNamespace(name="tutor/rescored_answers", version="0123456789ab"), rows, "table", console)
    said = console.file.getvalue()
    assert max(map(len, said.splitlines())) <= 80 and "fails" in said.splitlines()[1]


@pytest.mark.parametrize(
    ("rewarded", "words", "said"),
    [
        ({"environment": "envs.py:Shop"}, (), "the recipe has no rft.grader"),
        ({"grader": "verifier"}, ("--version", "0123456789ab"), "0123456789ab"),
    ],
)
def test_what_cannot_be_graded_again_is_said_in_one_sentence(lake, tmp_path, rewarded, words, said):  # noqa: F811
    (tmp_path / "envs.py").write_text("class Shop: ...")
    (tmp_path / "recipe.yaml").write_text(json.dumps({**REWARDED, "rft": rewarded}))
    assert said in millrace("rescore", tmp_path / "recipe.yaml", "--lake", lake.root, *words, check=1).stderr


def test_an_erasure_takes_the_texts_and_their_new_grades_and_no_package_has_them(trained):
    lake, model, recipe = trained  # noqa: F811
    millrace("rescore", recipe("verifier"), "--lake", lake.root)
    known = pq.read_table(model / "rollouts.parquet")["row_id"].to_pylist()
    gone = SimpleNamespace(derived_ids={known[0]}, seed_ids=set(), sessions=set())
    hits = [hit for hit in rows_in_artefacts(lake, gone) if "rl_prompts" not in hit.node]
    expected = [("rescored.parquet", known.count(known[0])), ("rollouts.parquet", known.count(known[0]))]
    assert [(hit.path, hit.rows) for hit in hits] == expected
    for hit in hits:
        erase_rows(hit, gone, "erasure-1")
        assert known[0] not in pq.read_table(hit.directory / hit.path)["row_id"].to_pylist()
    assert changed_files(model, read_manifest(model)) == []
    assert not [name for name in _files_of(lake.root, model) if name.endswith("rollouts.parquet")]
    part = model.relative_to(lake.root).as_posix()
    release = SimpleNamespace(adapter=None, served_parts=[SimpleNamespace(path=part)])
    named = _served_files(model, release, [read_manifest(model)])
    assert f"{part}/model.safetensors" in named and f"{part}/rollouts.parquet" not in named, (
        "a package would lack what it names"
    )
