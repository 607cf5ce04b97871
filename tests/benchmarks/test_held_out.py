"""No benchmark measures on what it trained on, and no seed on which a setting was searched counts in a figure.

A benchmark that trains and measures has a place in HELD_OUT: what it learns and what it measures on, as texts or token ids.
"""

import json
import re
from pathlib import Path

import pytest

from benchmarks import preference_gain, reward_pairs, rft_learns, sft_material
from benchmarks.held_out import drawn_items
from benchmarks.house import House, held_out
from tests.command import PROJECT

SHARED = PROJECT.parent / "shared"
needs_shared = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="there is no folder `shared` beside the project")


def of_drawn(items):
    return [[each["question"] for each in rows] for rows in ([*items.start, *items.prompts], items.held_out)]


def of_gsm8k(_):
    """trainer_vs_trl, student, auto_scheme, quantize_peers: test questions after training questions."""
    return [
        [re.sub(r"\W+", " ", row.messages[0]["content"].lower()) for row in sft_material.gsm8k(SHARED, split)]
        for split in ("train", "test")
    ]


def of_house_prompts(_):
    """drafter_*, drafting_differences, quantized_served, rollout_speed: prompts of three workloads."""
    lines = (SHARED / "data" / "house_onpolicy.jsonl").read_text().splitlines()
    return [
        [tuple(json.loads(line)["prompt"]) for line in lines],
        [tuple(prompt.ids) for prompts in held_out(SHARED).values() for prompt in prompts],
    ]


def of_house_answers(folder):
    """drafter_peers: answers that no drafter is trained on."""
    house = House(SHARED, folder)
    return [[tuple(row.ids[: -row.window]) for row in rows] for rows in (house.rows(), house.held_out_rows(10_000))]


def of_pairs(pairs):
    """reward_model: prompts by split."""

    def prompts(folder):
        import pyarrow.parquet as pq

        reward_pairs.write_pairs(pairs(SHARED), folder, seed=0)
        splits = {name: pq.read_table(folder / f"{name}.parquet")["prompt"].to_pylist() for name in ("train", "test")}
        return [splits["train"], splits["test"]]

    return prompts


HELD_OUT = {
    **{
        f"rft_learns, async_rl: {task}, seed {seed}": lambda _, task=task, seed=seed: of_drawn(rft_learns.items_of(task, seed))
        for task in rft_learns.TASKS
        for seed in rft_learns.SEEDS
    },
    **{
        f"preference_gain: seed {seed}": lambda _, seed=seed: of_drawn(preference_gain.items_of(seed))
        for seed in preference_gain.SEEDS
    },
    "GSM8K": of_gsm8k,
    "house prompts": of_house_prompts,
    "house answers": of_house_answers,
    "reward_model: oasst": of_pairs(reward_pairs.ranked_pairs),
    "reward_model: airline": of_pairs(reward_pairs.outcome_pairs),
}
OF_SHARED = {"GSM8K", "house prompts", "house answers", "reward_model: oasst", "reward_model: airline"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[needs_shared] if name in OF_SHARED else []) for name in HELD_OUT])
def test_nothing_that_is_measured_was_learnt(name, tmp_path):
    learnt, measured = HELD_OUT[name](tmp_path)
    assert len(measured) >= 10 and len(learnt) >= 10
    assert sorted(set(learnt) & set(measured)) == []


def test_a_task_of_too_few_questions_is_refused():
    def digits(count, seed):
        return [{"question": f"What is {number % 10}?"} for number in range(count)]

    with pytest.raises(ValueError, match="only 0 of 5 questions are not learnt"):
        drawn_items(digits, (10, 10, 5), 0)


def test_seeds_of_a_search_count_in_no_figure():
    assert preference_gain.SEARCH_SEED not in preference_gain.SEEDS
    assert {0, 1, 2, 9}.isdisjoint(rft_learns.SEEDS)  # rates and steps were chosen on these
    named = [path.name for path in Path(PROJECT / "benchmarks").glob("*.py") if "SEARCH_SEED" in path.read_text()]
    assert named == ["preference_gain.py"], "a benchmark with a search of its own is compared here too"
