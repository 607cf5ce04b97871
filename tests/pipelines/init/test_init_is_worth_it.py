"""What `millrace init` writes for several kinds of logs passes every check, and its trainings have enough steps."""

import json

import pytest

from pipelines.checks.check_recipe import check
from pipelines.checks.worth import check_worth
from pipelines.contract.recipe import load_recipe
from pipelines.init.recipe_file import RecipeWishes, write_recipe
from tests.pipelines.checks.test_worth import pair, request, sentence
from tests.resources.inspecting.test_survey import put
from tests.thorough_cases import thorough_except


def chat(number: int) -> dict:
    return {
        "messages": [
            {"role": "user", "content": sentence(number, 30)},
            {"role": "assistant", "content": sentence(number + 400, 30)},
        ]
    }


def own(number: int) -> dict:
    """A record of no known format."""
    return {
        "uuid": f"u{number}",
        "at": f"2026-06-{1 + number % 9:02}T10:00:00Z",
        "customer_id": f"c{number % 7}",
        "payload": {"question": sentence(number, 30), "reply": sentence(number + 400, 40)},
    }


def rated(number: int) -> dict:
    return {"response_id": f"r{number}", "name": "thumbs", "value": 1 if number % 3 else -1}


LOGS = {
    "a gateway": {"gateway/2026-06-01.jsonl": [request(n, user=f"u{n % 9}") for n in range(140)]},
    "chats": {"train.jsonl": [chat(n) for n in range(90)]},
    "pairs beside requests": {
        "logs/a.jsonl": [request(n) for n in range(60)],
        "logs/pairs.jsonl": [pair(n) for n in range(50)],
    },
    "an own format": {"app/a.jsonl": [own(n) for n in range(120)]},
    "feedback and suites": {
        "logs/a.jsonl": [request(n) for n in range(120)],
        "feedback.jsonl": [rated(n) for n in range(120)],
        "evals/sums.jsonl": [{"prompt": f"what is {n} + {n}", "answer": str(2 * n)} for n in range(40)],
        "evals/words.jsonl": [{"prompt": sentence(n, 9), "answer": "Paris"} for n in range(40)],
    },
}


@pytest.mark.parametrize("kind", thorough_except(["feedback and suites"], LOGS))
def test_what_init_writes_passes_every_check_and_trains_for_enough_steps(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_USER", "ana")
    monkeypatch.setenv("MILLRACE_USER_HASH_KEY", "k")
    for name, records in LOGS[kind].items():
        put(tmp_path / "in" / name, *records)
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 8_192}))
    toy, real = (
        write_recipe(RecipeWishes([str(tmp_path / "in")], tmp_path / f"{name}.yaml", model, workload="helper")).path
        for name, model in (("toy", "tiny"), ("real", str(base)))
    )
    report = check(toy, tmp_path / "lake", plan=False)
    assert [each for each in report.findings if each.state == "problem" or "could not be checked" in each.message] == []
    recipe = load_recipe(real)
    assert recipe.sft.method == "lora" and recipe.sft.max_length >= 1_024
    told = {each.check: each for each in check_worth(recipe, [])}
    assert told["rows"].state == "ok", told["rows"]
    assert told["sft"].state == "ok" and "at 0.0002" in told["sft"].message, told["sft"]
    assert {suite.task for suite in recipe.evals.values()} == ({"number", "exact"} if "suites" in kind else set())
