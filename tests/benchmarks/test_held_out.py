"""No benchmark measures on what it trained on, and no seed on which a setting was searched counts in a figure.

A benchmark that trains and measures has a place in HELD_OUT: what it learns and what it measures on, as texts or token ids.
"""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import (
    counting_task,
    real_preference,
    real_quantize,
    real_reward_model,
    real_rft,
    real_sft,
    real_student,
    sft_material,
)
from benchmarks.held_out import drawn_items
from benchmarks.house import House, held_out
from benchmarks.instructions import TOPICS
from tests.command import PROJECT

SHARED = PROJECT.parent / "shared"
needs_shared = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="there is no folder `shared` beside the project")


def of_drawn(items):
    return [[each["question"] for each in rows] for rows in ([*items.start, *items.prompts], items.held_out)]


def of_instructions(drawn):
    """Prompts, what they are about and how they ask of it."""

    def parts(prompts):
        asked = [re.match("(.*?[.?]) ", each["question"])[1] for each in prompts]
        topics = [max((topic for topic in TOPICS if topic in text), key=len) for text in asked]
        return [*asked, *topics, *(text.replace(topic, "") for text, topic in zip(asked, topics, strict=True))]

    assert {each["kind"] for each in drawn.prompts}.isdisjoint(each["kind"] for each in drawn.other_kinds)
    return [parts(drawn.prompts), parts([*drawn.held_out, *drawn.other_kinds])]


def of_mail(mail):
    """Mails and the items that they are about."""

    def parts(turns):
        return [text for turn in turns for text in (turn.question, json.loads(turn.answer)["item"])]

    return [parts([*mail.train, *mail.validation, *getattr(mail, "chosen_on", [])]), parts(mail.held_out)]


def of_gsm8k(_):
    """trainer_vs_trl, auto_scheme: test questions after training questions."""
    return [
        [re.sub(r"\W+", " ", row.messages[0]["content"].lower()) for row in sft_material.gsm8k(SHARED, split)]
        for split in ("train", "test")
    ]


def of_quantization(folder):
    """real_quantize: all runs of eight words, and names of functions, of calibration rows; of held-out rows and HumanEval."""

    def parts(texts):
        words = [re.findall(r"\w+", text.lower()) for text in texts]
        runs = [" ".join(each[at : at + 8]) for each in words for at in range(len(each) - 7)]
        return [*runs, *(name for text in texts for name in re.findall(r"^def (\w+)", text, re.MULTILINE))]

    tasks = real_quantize.human_eval(SHARED, folder)
    calibration, held_out = real_quantize.drawn_rows(SHARED, tasks)
    learnt, measured = ([each["content"] for row in rows for each in row.messages] for rows in (calibration, held_out))
    return [parts(learnt), parts([*measured, *(task.code for task in tasks)])]


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


def of_pairs(seed):
    """Trees and prompts of training pairs, and of the others."""
    parts = real_reward_model.parts(real_reward_model.ranked_pairs(SHARED), seed)
    return [[each[key] for each in parts[split] for key in ("session_id", "prompt")] for split in ("train", "test")]


HELD_OUT = {
    **{f"async_rl: seed {seed}": lambda _, seed=seed: of_drawn(counting_task.items_of(seed)) for seed in counting_task.SEEDS},
    **{f"real_rft: seed {seed}": lambda _, seed=seed: of_instructions(real_rft.drawn_for(seed)) for seed in real_rft.SEEDS},
    **{
        f"real_preference: seed {seed}": lambda _, seed=seed: of_instructions(real_preference.drawn_for(seed))
        for seed in real_preference.SEEDS
    },
    **{f"real_sft: seed {seed}": lambda _, seed=seed: of_mail(real_sft.Mail(seed)) for seed in real_sft.SEEDS},
    "real_quantize": of_quantization,
    "GSM8K": of_gsm8k,
    "house prompts": of_house_prompts,
    "house answers": of_house_answers,
    **{f"real_reward_model: seed {seed}": lambda _, seed=seed: of_pairs(seed) for seed in real_reward_model.SEEDS},
    "real_student": lambda folder: of_mail(real_student.Task(folder)),
}
OF_SHARED = {"real_quantize", "GSM8K", "house prompts", "house answers", *(name for name in HELD_OUT if "reward" in name)}


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
    searched = [path.stem for path in Path(PROJECT / "benchmarks").glob("*.py") if "SEARCH_SEED" in path.read_text()]
    for name in searched:
        benchmark = import_module(f"benchmarks.{name}")
        assert benchmark.SEARCH_SEED not in benchmark.SEEDS
    assert "real_rft" in searched
