"""Answers of one model by the project's own decoder: to prompts, and, without thoughts (`</think>`), to items."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from model_ops.answers import AnswerLog
from model_ops.completions import Sampling, server_defaults
from model_ops.decoding import Completion, Runner, decode, load_runner, render_prompt
from model_ops.evaluation.measurement import GREEDY
from model_ops.evaluation.settings import TaskSettings
from model_ops.jobs import ModelError, Progress
from model_ops.models import end_of_text_ids, load_tokenizer
from model_ops.rendering import Row
from model_ops.tasks import Item

END_OF_THOUGHT = "</think>"
SAMPLED = "sampled"


class ItemAnswer(NamedTuple):
    """An answer to an item. is_cut: whether it ended at the limit of its tokens."""

    text: str
    is_cut: bool = False


Answers = dict[str, dict[str, list[ItemAnswer]]]
"""Answers by item and way of sampling."""


class OwnModel:
    """A model and its tokenizer. `runner`, and what needs it, raises ModelError if the model cannot be decoded."""

    def __init__(self, directory: Path):
        self._directory, self.tokenizer = directory, load_tokenizer(directory)
        self.eos_ids = end_of_text_ids(directory)

    @cached_property
    def runner(self) -> Runner:
        """The model's weights, loaded when they are first needed."""
        return load_runner(self._directory)

    @property
    def room(self) -> int:
        """Most tokens of a prompt."""
        return self.runner.max_positions - 1

    def answers(
        self,
        prompts: Mapping[str, Sequence[int]],
        sampling: Sampling,
        max_new_tokens: int,
        batch_size: int,
        seed: int = 0,
        on_batch: Callable[[int], None] | None = None,
    ) -> dict[str, Completion]:
        """The answers by name; a name decides the random numbers of its answer."""
        answers = decode(
            self.runner,
            list(prompts.values()),
            list(prompts),
            eos_ids=self.eos_ids,
            temperature=sampling.temperature,
            truncation=sampling.truncation,
            penalties=sampling.penalties,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            seed=seed,
            on_batch=on_batch,
        )
        return dict(zip(prompts, answers, strict=True))

    def text(self, answer: Completion) -> str:
        """The answer without its end token."""
        tokens = [token for token in answer.tokens if token not in self.eos_ids]
        return self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def key_of(item: Item) -> str:
    """The item's name within a report."""
    return f"{item.suite}/{item.item_id}"


def answer_items(
    directory: Path,
    items: Sequence[Item],
    settings: TaskSettings,
    batch_size: int,
    seed: int,
    progress: Progress,
    phase: str,
    log: AnswerLog,
    key: str,
) -> Answers:
    """A greedy answer to each item and `settings.samples` sampled ones, by the server's default parameters. Those that the log
    has under `key` are not sampled again; a model of which the log has all is not loaded. Raises ModelError if the model cannot
    be decoded, or answers no item."""
    model = OwnModel(directory)
    room = (log.find(f"{key} room") or {}).get("tokens") or model.room
    log.add({"key": f"{key} room", "tokens": room})
    prompts: dict[str, list[int]] = {}
    refusal = f"{directory}: every item's prompt is longer than the model's {room} positions; leave the suite out of evals"
    for item in items:
        try:
            ids = render_prompt(model.tokenizer, Row(key_of(item), item.messages, item.tools))
        except ModelError as error:
            refusal = str(error)
            continue
        if 0 < len(ids) <= room:
            prompts[key_of(item)] = ids
    if not prompts:
        raise ModelError(refusal)
    answers: Answers = {name: {} for name in prompts}
    sampled = server_defaults(directory)
    ways = [(GREEDY, replace(sampled, temperature=0.0), 1), (SAMPLED, sampled, settings.samples)]
    done, total = 0, len(prompts) * (1 + settings.samples)
    for way, sampling, count in ways:
        names = [(name, f"{name}#{number}") for name in prompts for number in range(count)]
        for start in range(0, len(names), batch_size):
            progress.stop_if_requested()
            progress.report(phase, done, total, "answers")
            part = names[start : start + batch_size]
            asked = {each: prompts[name] for name, each in part if f"{key} {way} {each}" not in log}
            fresh = model.answers(asked, sampling, settings.max_new_tokens, batch_size, seed) if asked else {}
            log.add_all(
                {"key": f"{key} {way} {each}", "text": model.text(answer), "is_cut": answer.finish_reason == "length"}
                for each, answer in fresh.items()
            )
            for name, each in part:
                record = log.find(f"{key} {way} {each}") or {}
                text = record["text"].rpartition(END_OF_THOUGHT)[2]
                answers[name].setdefault(way, []).append(ItemAnswer(text, record.get("is_cut", False)))
            done += len(part)
    progress.report(phase, total, total, "answers")
    return answers
