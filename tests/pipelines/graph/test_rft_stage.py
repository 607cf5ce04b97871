"""The stage rft_model: what a recipe says of it, and the graph's own asset on a tiny model."""

import json
import re
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.contract.recipe import read_recipe
from pipelines.contract.text import RecipeProblemsError
from pipelines.planning.training_plan import plan_recipe
from resources.artefacts.registry import Registry
from resources.stages.table import stage
from tests.pipelines.graph.test_preference_stage import materialized
from tests.pipelines.graph.test_second_sft import BARE, QUICK, InProcess, chat, lake  # noqa: F401

TASKS = {"rl_prompts": {"tasks": {"sums": {"uri": "sums.jsonl", "task": "number"}}}}
REWARDED = {**BARE, "datasets": {"rl_prompts": {}}, "rft": {"grader": "verifier"}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"datasets": {}}, "it learns rl_prompts, which is not made: give datasets.rl_prompts, or leave rft out"),
        ({"rft": {"grader": "reward_model"}}, "it asks the reward model, which is not trained"),
        ({"rft": {"grader": "absent.py:grade"}}, "there is no file"),
        ({"rft": {"grader": "code.py:absent"}}, "code.py defines no absent; name what the file defines, as code.py:NAME"),
        ({"rft": {"environment": "code.py:Shop"}}, "code.py defines no Shop"),
        ({"rft": {"grader": "broken.py:grade"}}, "broken.py is no Python in line 2: mend it"),
        ({"rft": {"grader": "null.py:grade"}}, "null.py is no Python: mend it"),
        ({"rft": {"grader": {"parts": {"a": {"by": "ranking"}}}}}, "`by: ranking` asks a model: name it beside it as `judge"),
        ({"rft": {"grader": "verifier", "answers": 1}}, "rft.answers"),
        ({"rft": {"grader": "verifier", "python": "/bin/sh"}}, "python runs an environment or an agent, and there is a grader"),
        ({"rft": {"agent": "verifiers", "python": "./absent"}}, "absent; give a Python interpreter, such as ./venvs/agent"),
        ({"rft": {"agent": "verifier"}}, "rft.agent"),
        ({"rft": {"agent": "verifiers"}, "datasets": TASKS}, "it is number, and rft.agent plays what `millrace taskset` wrote"),
        (
            {"evals": {"x": {"uri": "x.jsonl", "task": "record"}}},
            "records are for an environment or an agent, and have no score",
        ),
        ({"rft": {"grader": "verifier", "cap": 3}}, "cap is given, and only cispo reads it"),
        ({"rft": {"grader": "verifier", "overlong_tokens": 3}}, "overlong_tokens is given, and overlong is none"),
        ({"rft": {"grader": "verifier", "mesh": {"cp": 2}}}, "mesh.cp splits rows"),
        ({"rft": {"grader": "verifier", "mesh": {"tp": 2}, "max_staleness": 1}}, "leave mesh or max_staleness out"),
        ({"merge": {"models": ["sft", "base"]}}, "rft is missing, so the model trained on rewards would not be used"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_in_one_sentence(tmp_path, content, said):
    (tmp_path / "code.py").write_text("def grade(answer): return 1.0")
    (tmp_path / "null.py").write_text("grade = len\0")
    (tmp_path / "broken.py").write_text("x = 1\ndef grade(answer: return 1.0")
    with pytest.raises(RecipeProblemsError) as refused:
        read_recipe({**REWARDED, **content}, tmp_path)
    assert said in " ".join(f"{problem.key} {problem.sentence}" for problem in refused.value.problems)


@pytest.mark.parametrize(
    "defined", ["grade = len", "from math import *", "from a import b as grade", "if 1:\n async def grade(): ..."]
)
def test_what_a_file_may_define_is_not_refused(tmp_path, defined):
    (tmp_path / "rewards.py").write_text(defined)
    assert read_recipe({**REWARDED, "rft": {"grader": "rewards.py:grade"}}, tmp_path).rft.grader


def test_files_of_graders_are_found_from_the_recipe_and_the_reward_model_only_where_it_is_asked(tmp_path):
    (tmp_path / "rewards.py").write_text("def grade(answer): return 1.0")
    both = {"grader": "rewards.py:grade", "held_out_grader": {"parts": {"liked": {"by": "reward_model"}}}}
    recipe = read_recipe(
        {**REWARDED, "datasets": {"rl_prompts": {}, "preference": {}}, "reward_model": {}, "rft": both}, tmp_path
    )
    assert recipe.rft.grader_files == [str(tmp_path / "rewards.py")]
    assert recipe.policy.graded_by_reward_model == {"rft_model"}
    again = read_recipe(json.loads(recipe.as_text()), tmp_path / "elsewhere")
    assert again.rft == recipe.rft
    assert read_recipe(REWARDED, tmp_path).policy.graded_by_reward_model == frozenset()


def test_an_interpreter_is_found_from_the_recipe_and_a_taskset_has_no_file(tmp_path):
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/python").symlink_to(sys.executable)
    (tmp_path / "agent.py").write_text("def run(row, base_url, api_key): return 1.0")
    records = {"rl_prompts": {"tasks": {"x": {"uri": "x.jsonl", "task": "record"}}}}
    for agent, files in (("agent.py:run", [str(tmp_path / "agent.py")]), ("verifiers", [])):
        content = {**REWARDED, "datasets": records, "rft": {"agent": agent, "python": "venv/python"}}
        recipe = read_recipe(content, tmp_path)
        assert recipe.rft.python == str(tmp_path / "venv/python"), "the link, for it tells the environment"
        assert recipe.rft.files == files
        assert read_recipe(json.loads(recipe.as_text()), tmp_path / "elsewhere").rft == recipe.rft


def test_a_merge_that_lists_nothing_merges_the_last_trained_model_with_the_one_before(tmp_path):
    def listed(**more):
        return read_recipe({**REWARDED, **more}, tmp_path).merge.models

    preferred = {"datasets": {"rl_prompts": {}, "preference": {}}, "preference": {}}
    assert listed(merge={}) == ["rft", "sft"]
    assert listed(merge={}, **preferred) == ["rft", "preference"]


def test_plan_takes_the_stage(tmp_path):
    recipe = read_recipe({**REWARDED, "rft": {"grader": "verifier", "method": "lora"}}, tmp_path)
    assert plan_recipe(recipe, "1xH100", "rft").needs.method == "lora"


def prompts(registry):
    draft = registry.draft("dataset", "rl_prompts", "build_rl_prompts", ("model_ops/jobs/job.py",), {}, [])
    for split, numbers in (("train", range(12)), ("validation", range(12, 16))):
        rows = [
            {
                "row_id": f"task:{number}",
                "interaction_ids": [],
                "content_sha256": f"task-{number}",
                "messages": json.dumps(chat(number)[:1]),
                "verifier": json.dumps({"kind": "regex", "pattern": "[a-m]"}),
            }
            for number in numbers
        ]
        table = pa.Table.from_pylist(rows, schema=pa.schema({
            "row_id": pa.string(), "interaction_ids": pa.list_(pa.string()), "content_sha256": pa.string(),
            "messages": pa.string(), "verifier": pa.string(),
        }))  # fmt: skip
        pq.write_table(table, draft.directory / f"{split}.parquet")
    return registry.finish(draft, {})


@pytest.mark.slow
def test_the_stage_goes_on_from_the_fine_tuned_model_and_is_merged_with_it(lake, tmp_path):  # noqa: F811
    learning = {
        "grader": "verifier", "steps": 4, "prompts_per_step": 3, "answers": 4, "max_new_tokens": 6, "max_length": 64,
        "learning_rate": 1e-2, "overlong": "none",
    }  # fmt: skip
    content = {**REWARDED, "sft": QUICK, "rft": learning, "merge": {"models": ["rft", "sft"]}}
    recipe, registry = read_recipe(content, tmp_path), Registry(lake, "tutor")
    prompts(registry)
    assert materialized(lake, recipe, ("sft_model",), InProcess()).success
    assert not materialized(lake, recipe, ("rft_model",), InProcess(stop_at=2)).success
    assert materialized(lake, recipe, ("rft_model", "merged_model"), InProcess()).success
    made = registry.current("model", "rft_model")
    assert {item.name for item in made.inputs} == {"tutor/sft_model", "tutor/rl_prompts"}
    assert {item.name for item in registry.current("model", "merged_model").inputs} == {"tutor/sft_model", "tutor/rft_model"}
    directory = registry.directory(made)
    assert pq.read_metadata(directory / "rollouts.parquet").num_rows == 4 * 3 * 4 == made.metrics["rollouts"]
    card = (directory / "README.md").read_text()
    assert "trained on its own answers by rewards" in card and "before validation pass rate" in card


TAUGHT = {
    **REWARDED,
    "sft": {"enabled": False},
    "teacher": {
        "base": "sft", "prompts": "rl_prompts", "answers": 6, "temperature": 1.0, "max_tokens": 200, "most_failed": 1.0,
        "verify": {"kind": "verifier"}, "trains": "student", "licence": "mit",
    },
    "student": {"layers": 1, "label_weight": 1, "choose_layers": "even"},
}  # fmt: skip


def test_prompts_are_answered_only_where_the_recipe_makes_them_and_by_a_trained_model(tmp_path):
    policy = read_recipe(TAUGHT, tmp_path).policy
    assert policy.source_of("student_model") == "rft_model" and policy.rows_of("student_model") == "teacher_answers"
    asked = stage("teacher_answers")
    assert asked.reads(policy, asked, "rl_prompts") == ("rl_prompts",) and policy.named_datasets == []
    logged = {**TAUGHT["teacher"], "prompts": "sft_dataset", "verify": {"kind": "number"}}
    assert asked.reads(read_recipe({**TAUGHT, "teacher": logged}, tmp_path).policy, asked, "rl_prompts") == ()
    for change, said in (
        ({"datasets": {}, "rft": {"enabled": False, "grader": "verifier"}}, "it is rl_prompts, which is not made; give"),
        ({"rft": {"enabled": False, "grader": "verifier"}}, "it is sft, the fine-tuned model, and sft.enabled is false"),
    ):
        with pytest.raises(RecipeProblemsError) as refused:
            read_recipe({**TAUGHT, **change}, tmp_path)
        assert said in " ".join(problem.sentence for problem in refused.value.problems)


@pytest.mark.slow
def test_right_answers_of_the_rewarded_base_teach_the_student(lake, tmp_path):  # noqa: F811
    learning = {"grader": "verifier", "steps": 2, "prompts_per_step": 3, "answers": 4, "max_new_tokens": 6, "max_length": 64}
    content = {**TAUGHT, "rft": {**learning, "overlong": "none"}, "student": {**TAUGHT["student"], **QUICK, "steps": 2}}
    recipe, registry = read_recipe(content, tmp_path), Registry(lake, "tutor")
    prompts(registry)
    assert materialized(lake, recipe, ("rft_model", "teacher_answers", "student_model"), InProcess()).success
    answers, student = registry.current("dataset", "teacher_answers"), registry.current("model", "student_model")
    assert {item.name for item in answers.inputs} == {"tutor/sft_dataset", "tutor/rl_prompts", "tutor/rft_model"}
    assert {item.name for item in student.inputs} == {"tutor/rft_model", "tutor/teacher_answers"}
    rows = pq.read_table(registry.directory(answers) / "train.parquet").to_pylist()
    assert 0 < len(rows) == answers.metrics["answered"] <= 12 and answers.metrics["rows"] == 12
    assert {row["row_id"] for row in rows} <= {f"task:{number}" for number in range(12)}, "no held-out prompt"
    assert all(re.search("[a-m]", json.loads(row["messages"])[-1]["content"]) for row in rows)
