"""`millrace check` before hours are spent: rows and steps of each training, whose rows are read, and gates that can hold."""

import json
import shutil

import pytest
import yaml

from pipelines.checks import worth
from pipelines.checks.sampled_start import _prompts_in_time
from pipelines.checks.worth import _alike, check_worth
from pipelines.contract.recipe import load_recipe
from pipelines.storage.locations import RECIPES
from resources.inspecting import rehearsal
from tests.model_ops.tiny_models import write_target
from tests.resources.inspecting.test_survey import put
from tests.thorough_cases import thorough_except

WORDS = [
    "harbour", "copper", "meadow", "lantern", "violet", "engine", "thunder", "pepper", "saddle", "window", "orbit", "marble",
    "garden", "velvet", "bridge",
]  # fmt: skip


def sentence(number: int, words: int = 60) -> str:
    return " ".join(
        WORDS[(number * 7 + place * (1 + number % 5) + number // 15) % 15] + str(number % 97 + place) for place in range(words)
    )


def request(number: int, **more) -> dict:
    """A logged request with its answer, about 300 tokens; more: keys beside both."""
    asked = {"model": "m", "messages": [{"role": "user", "content": sentence(number)}]}
    said = {"id": f"r{number}", "choices": [{"message": {"role": "assistant", "content": sentence(number + 500)}}]}
    return {"id": f"r{number}", "created": 1_780_000_000 + 400 * number, "request": asked, "response": said, **more}


def pair(number: int) -> dict:
    return {
        "prompt": sentence(number, 20),
        "chosen": sentence(number + 300, 30),
        "rejected": sentence(number + 600, 30),
        "id": f"p{number}",
    }


def findings(home, **keys) -> dict[str, list]:
    """Findings by check of a recipe on the logs in `home`."""
    (home / "base").mkdir(exist_ok=True)
    (home / "base").mkdir(exist_ok=True)
    if not (home / "base" / "config.json").exists():
        (home / "base" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    content = {"workload": "shop", "base_model": "base", "sources": {"logs": {"uri": "logs"}}, **keys}
    path = home / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    told: dict[str, list] = {}
    for finding in check_worth(load_recipe(path), []):
        told.setdefault(finding.check, []).append(finding)
    return told


def test_small_data_has_enough_steps_by_default_and_a_large_step_that_is_given_is_warned_of(tmp_path, monkeypatch):
    put(tmp_path / "logs" / "a.jsonl", *map(request, range(140)))
    rehearse, rehearsals = worth.rehearse, []  # once: the settings of trainings change no dataset
    monkeypatch.setattr(
        worth, "rehearse", lambda *asked: rehearsals[0] if rehearsals else rehearsals.append(rehearse(*asked)) or rehearsals[0]
    )
    told = findings(tmp_path)
    for section in ("sft", "student", "speculator"):
        (line,) = told[section]
        assert line.state == "ok" and "rows, 50 steps" in line.message, line
    (few,) = findings(tmp_path, sft={"epochs": 1, "tokens_per_step": 65_536})["sft"]
    assert few.state == "warning" and "rows, 1 step of" in few.message and "too few steps" in few.message
    assert "add rows" in few.remedy and "set sft.epochs to 50, or sft.tokens_per_step to" in few.remedy
    (toy,) = findings(tmp_path, base_model="tiny", sft={"epochs": 1, "tokens_per_step": 65_536})["sft"]
    assert toy.state == "ok"


def test_preferences_of_some_hundred_pairs_have_steps_and_gates_name_the_pairs_that_they_need(tmp_path):
    put(tmp_path / "logs" / "a.jsonl", *map(request, range(40)), *map(pair, range(113)))
    keys = {"datasets": {"preference": {}, "sft": {"test_share": 0.02}}, "preference": {}, "reward_model": {}}
    told = findings(tmp_path, **keys)
    (steps,) = told["preference"]
    assert steps.state == "ok" and "30 steps" in steps.message and "at 5e-06" in steps.message, steps
    assert told["reward_model"][0].state == "ok"
    short = {line.message.partition(" cannot")[0]: line for line in told["gates"]}
    missing = short["release.gates.preference_accuracy"]
    assert "before there are 6 held-out pairs" in missing.message and "datasets.sft.test_share" in missing.remedy
    assert "before there are 4 held-out pairs" in short["reward_model.gate.accuracy"].message
    keys["datasets"]["sft"]["test_share"] = 0.2
    assert "preference_accuracy" not in str(findings(tmp_path, **keys)["gates"])


def test_a_suite_of_few_items_cannot_tell_that_nothing_was_lost(tmp_path):
    put(tmp_path / "logs" / "a.jsonl", *map(request, range(40)))
    put(tmp_path / "sums.jsonl", *({"prompt": f"what is {n} + {n}", "answer": str(2 * n)} for n in range(12)))
    (line,) = [
        each
        for each in findings(tmp_path, evals={"sums": {"uri": "sums.jsonl", "task": "number"}})["gates"]
        if "sums" in each.message
    ]
    assert "accuracy_below_base/sums cannot hold before there are 30 held-out items, and there will be 12" in line.message


@pytest.mark.parametrize(("bound", "least"), [(0.5, 6), (0.0, 3), (0.9, 30), (-1, 2)])
def test_the_outcomes_that_an_interval_needs(bound, least):
    assert _alike(bound) == least


def test_users_and_sessions_that_are_read_are_counted_and_those_that_are_not_are_proposed(tmp_path):
    put(tmp_path / "logs" / "a.jsonl", *(request(n, actor={"login": f"u{n % 9}"}, thread_id=f"t{n // 3}") for n in range(40)))
    (line,) = findings(tmp_path)["users"]
    assert line.message == "users read: none, sessions read: none" or "sessions read: 40 of 40" in line.message
    assert line.state == "warning" and "under sources.logs, fields: {" in line.remedy and "actor.login" in line.remedy
    fields = yaml.safe_load("{" + line.remedy.partition("{")[2].partition("}")[0] + "}")
    (line,) = findings(tmp_path, sources={"logs": {"uri": "logs", "fields": fields}})["users"]
    assert line.state == "ok" and "users read: 40 of 40" in line.message


def test_nobody_is_named(tmp_path):
    put(tmp_path / "logs" / "a.jsonl", *map(request, range(30)))
    (line,) = findings(tmp_path)["users"]
    assert line.state == "warning" and line.message.startswith("users read: none, sessions read: none; rows of one person")


def test_a_part_that_cannot_be_read_by_lines_says_nothing(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.json").write_text(json.dumps([request(n) for n in range(40)]))
    monkeypatch.setattr(rehearsal, "MOST_BYTES", 4_000)
    (rows,) = findings(tmp_path)["rows"]
    assert rows.state == "ok" and rows.message.startswith("not counted")


@pytest.mark.parametrize("files", [1, 12])
def test_large_logs_are_read_in_part_and_counted_whole(tmp_path, monkeypatch, files):
    for number in range(files):
        put(tmp_path / "logs" / f"{number}.jsonl", *map(request, range(number * 240 // files, (number + 1) * 240 // files)))
    whole = sum(path.stat().st_size for path in (tmp_path / "logs").iterdir())
    monkeypatch.setattr(rehearsal, "MOST_BYTES", whole // 3)
    (rows,) = findings(tmp_path)["rows"]
    assert rows.message.startswith("about ")
    counts = [int(word.replace(",", "")) for word in rows.message.replace(",", " ").split() if word.isdigit()][:3]
    assert 190 <= sum(counts) <= 290, rows.message


def test_a_dataset_that_stays_empty_is_a_problem_before_the_run(tmp_path):
    put(tmp_path / "logs" / "a.jsonl", *map(request, range(20)))
    (line,) = findings(tmp_path, datasets={"preference": {}}, preference={})["rows"]
    assert line.state == "problem" and "no pair of a better and a worse answer" in line.message


NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))


@pytest.mark.parametrize("name", thorough_except(["preferences", "quantize_only", "rft"], NAMES))
def test_every_recipe_is_rehearsed(name, tmp_path):
    put(tmp_path / "logs" / "a.jsonl", *map(request, range(60)), *map(pair, range(40)))
    put(tmp_path / "sums.jsonl", *({"prompt": f"what is {n} + {n}", "answer": str(2 * n)} for n in range(60)))
    content = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    content |= {"base_model": "base", "sources": {"logs": {"uri": "logs"}}, "seeds": {}, "evals": {}}
    for key in ("first_day", "last_day", "tiny"):
        content.pop(key, None)
    content.get("datasets", {}).get("sft", {}).pop("mix", None)
    shutil.copy(RECIPES / "sums.py", tmp_path)
    for task in content.get("datasets", {}).get("rl_prompts", {}).get("tasks", {}).values():
        task["uri"] = "sums.jsonl"
    told = findings(tmp_path, **content)
    trained = {"preferences": {"sft", "preference"}, "rft": {"sft", "rft"}, "quantize_only": set()}
    assert told["rows"][0].state == "ok", told["rows"]
    assert trained.get(name, set()) <= told.keys()


def test_a_rate_far_from_the_default_and_a_start_that_is_never_right_are_warned_of(tmp_path):
    put(tmp_path / "logs" / "a.jsonl", *map(request, range(40)))
    write_target(tmp_path / "base", layers=1, vocab_size=300)
    sums = [{"id": f"s{number}", "prompt": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(40)]
    put(tmp_path / "sums.jsonl", *sums)
    prompts = {"rl_prompts": {"tasks": {"sums": {"uri": "sums.jsonl", "task": "number"}}}}
    given = {"grader": "verifier", "max_new_tokens": 4, "learning_rate": 2e-4}
    told = findings(tmp_path, datasets=prompts, sft={"enabled": False}, rft=given, student={"enabled": False})
    said = {line.message: line for line in told["rft"]}
    [far] = [line for words, line in said.items() if "far from this method's default" in words]
    assert far.state == "warning" and far.remedy == "leave rft.learning_rate out, which takes 5e-06"
    [never] = [line for words, line in said.items() if "answers that are all wrong teach nothing" in words]
    assert never.state == "warning" and "choose easier prompts" in never.remedy
    assert [_prompts_in_time(size, 256) for size in (None, 10**6, 10**12)] == [0, 16, 0]
    tuned_first = findings(tmp_path, datasets=prompts, rft={**given, "learning_rate": 2e-5})
    assert [line.state for line in tuned_first["rft"]] == ["ok"], "the run looks at a start that is trained first"
    (tmp_path / "rewards.py").write_text("def grade(answer):\n    open(__file__ + '.asked', 'w')\n    return 0.0\n")
    given |= {"grader": "rewards.py:grade", "learning_rate": 2e-5}
    own = findings(tmp_path, datasets=prompts, sft={"enabled": False}, rft=given, student={"enabled": False})
    assert [line.state for line in own["rft"]] == ["ok"] and not (tmp_path / "rewards.py.asked").exists()
