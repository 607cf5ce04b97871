"""One model's answers to evaluation items, by the project's own decoder.

A thought before `</think>` is no part of an answer. An item has no answer if its prompt does not fit or the template refuses
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from model_ops.answering import Sampling, server_defaults
from model_ops.decoding import decode, load_runner, render_prompt
from model_ops.evaluation.measurement import GREEDY
from model_ops.evaluation.settings import TaskSettings
from model_ops.jobs import ModelError, Progress
from model_ops.models import end_of_text_ids, load_tokenizer
from model_ops.rendering import Row
from model_ops.tasks import Item

END_OF_THOUGHT = "</think>"
SAMPLED = "sampled"

Answers = dict[str, dict[str, list[str]]]
"""Answers by item and way of sampling."""


def key_of(item: Item) -> str:
    """The item's name within a report."""
    return f"{item.suite}/{item.item_id}"


def answer_items(
    directory: Path, items: Sequence[Item], settings: TaskSettings, batch_size: int, seed: int, progress: Progress, phase: str
) -> Answers:
    """A greedy answer to each item and `settings.samples` sampled ones, by the server's default parameters.

    Raises ModelError if the model cannot be decoded, or answers no item.
    """
    tokenizer, runner, eos_ids = load_tokenizer(directory), load_runner(directory), end_of_text_ids(directory)
    room = runner.max_positions - 1
    prompts: dict[str, list[int]] = {}
    refusal = f"{directory}: every item's prompt is longer than the model's {room} positions; leave the suite out of evals"
    for item in items:
        try:
            ids = render_prompt(tokenizer, Row(key_of(item), item.messages, item.tools))
        except ModelError as error:
            refusal = str(error)
            continue
        if 0 < len(ids) <= room:
            prompts[key_of(item)] = ids
    if not prompts:
        raise ModelError(refusal)
    answers_of: Answers = {key: {} for key in prompts}
    greedy = replace(server_defaults(directory), temperature=0.0)
    sampled = server_defaults(directory)
    ways = [(GREEDY, greedy, 1), *([(SAMPLED, sampled, settings.samples)] if settings.samples else [])]
    total = len(prompts) * sum(count for _, _, count in ways)
    for way, sampling, count in ways:
        names = [(key, number) for key in prompts for number in range(count)]
        for start in range(0, len(names), batch_size):
            progress.stop_if_requested()
            progress.report(phase, start + (len(prompts) if way == SAMPLED else 0), total, "answers")
            part = names[start : start + batch_size]
            for (key, _), text in zip(
                part,
                _texts(
                    runner,
                    tokenizer,
                    eos_ids,
                    sampling,
                    [prompts[key] for key, _ in part],
                    [f"{key}#{number}" for key, number in part],
                    settings,
                    seed,
                ),
                strict=True,
            ):
                answers_of[key].setdefault(way, []).append(text)
    progress.report(phase, total, total, "answers")
    return answers_of


def _texts(
    runner,
    tokenizer,
    eos_ids: frozenset[int],
    sampling: Sampling,
    prompts: Sequence[list[int]],
    names: Sequence[str],
    settings: TaskSettings,
    seed: int,
) -> list[str]:
    answers = decode(
        runner,
        prompts,
        names,
        eos_ids=eos_ids,
        temperature=sampling.temperature,
        truncation=sampling.truncation,
        penalties=sampling.penalties,
        max_new_tokens=settings.max_new_tokens,
        batch_size=len(prompts),
        seed=seed,
    )
    texts = []
    for answer in answers:
        tokens = [token for token in answer.tokens if token not in eos_ids]
        text = tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        texts.append(text.rpartition(END_OF_THOUGHT)[2])
    return texts
