"""Rollouts of a single answer: the engine answers each prompt several times, and a grader says how good each answer is.

maker = GradedAnswers(grader, tokenizer, answers=8, training=training)          # a RolloutMaker
reader.read(prompt, tokens, ended)          # (GradedAnswer, whether a server would give this answer)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from model_ops.graders import AskedGroup, GradedAnswer, Grader
from model_ops.rendering import TurnEncoder
from model_ops.rollouts.prompts import SampledPrompt
from model_ops.rollouts.rollout import Engine, Rollout, Tokens
from model_ops.tasks import UnusableAnswer, message_of


class AnswerReader:
    """Reads sampled tokens as the answer that a grader sees."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer, self._specials = tokenizer, TurnEncoder(tokenizer).specials

    def read(self, prompt: SampledPrompt, tokens: Tokens, ended: bool) -> tuple[GradedAnswer, bool]:
        """(the answer, whether it is one that a server would give: it ends, and its message can be read)."""
        answer, usable = self.read_text(prompt, sampled_text(self._tokenizer, tokens, ended), len(tokens), ended)
        return replace(answer, ids=tokens.tolist()), usable

    def read_text(self, prompt: SampledPrompt, text: str, tokens: int, ended: bool) -> tuple[GradedAnswer, bool]:
        """As `read`, of an answer whose text was kept. tokens: how many it had."""
        try:
            message = message_of(text, prompt.text, prompt.tools, self._specials)
        except UnusableAnswer:
            message, ended = {"role": "assistant", "content": text}, False
        return GradedAnswer(text, message, tokens), ended


def sampled_text(tokenizer: PreTrainedTokenizerBase, tokens: Tokens, ended: bool) -> str:
    """Sampled tokens as text, special ones included, without the end token of an answer that ended."""
    ids = tokens[:-1] if ended else tokens
    return tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)


class GradedAnswers:
    """As RolloutMaker. grader: opened. answers: to each prompt. training: AskedGroup.training after so many steps."""

    def __init__(
        self, grader: Grader, tokenizer: PreTrainedTokenizerBase, answers: int, training: Callable[[int], Mapping[str, float]]
    ):
        self.grader, self.answers, self._reader, self._training = grader, answers, AnswerReader(tokenizer), training

    def rollouts(
        self, prompts: Sequence[SampledPrompt], names: Sequence[str], engine: Engine, seed: int
    ) -> list[list[Rollout]]:
        asked = [
            (prompt, f"{name}:{answer}") for prompt, name in zip(prompts, names, strict=True) for answer in range(self.answers)
        ]
        said = iter(engine.sample([prompt.tokens for prompt, _ in asked], [name for _, name in asked], seed))
        sampled = [[next(said) for _ in range(self.answers)] for _ in prompts]
        groups = [
            AskedGroup(
                prompt.row_id,
                prompt.messages,
                prompt.tools,
                prompt.columns,
                [self._reader.read(prompt, answer.tokens, answer.ended)[0] for answer in of_prompt],
                self._training(int(max(answer.version for answer in of_prompt))),
            )
            for prompt, of_prompt in zip(prompts, sampled, strict=True)
        ]
        return [
            [
                Rollout.of(prompt.tokens, answer, grade, attempt)
                for attempt, (answer, grade) in enumerate(zip(of_prompt, grades, strict=True))
            ]
            for prompt, of_prompt, grades in zip(prompts, sampled, self.grader.grade(groups), strict=True)
        ]
