"""Rollouts of a single answer: the engine answers each prompt several times, and a grader says how good each answer is.

maker = GradedAnswers(grader, tokenizer, answers=8, training=training, progress=progress)       # a RolloutMaker
reader.read(prompt, tokens, ended)          # (GradedAnswer, whether a server would give this answer)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from model_ops.answers.prompts import SampledPrompt
from model_ops.answers.rollout import Engine, Rollout, Sampled, Tokens
from model_ops.answers.rollout_log import RolloutLog
from model_ops.graders import AskedGroup, GradedAnswer, Grader
from model_ops.jobs import Progress
from model_ops.rendering import TurnEncoder
from model_ops.tasks import UnusableAnswer, message_of

GRADED_AT_ONCE = 8
"""Prompts whose answers are graded before the grades are kept: what a kill may lose."""


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
    """As RolloutMaker. grader: opened. answers: to each prompt. training: AskedGroup.training after so many steps. log: keeps
    grades as they come, GRADED_AT_ONCE prompts at a time; a killed run samples the call again, and grades the rest of it."""

    def __init__(
        self,
        grader: Grader,
        tokenizer: PreTrainedTokenizerBase,
        answers: int,
        training: Callable[[int], Mapping[str, float]],
        progress: Progress,
        log: RolloutLog | None = None,
    ):
        self.grader, self.answers, self._reader, self._training = grader, answers, AnswerReader(tokenizer), training
        self._progress, self._log = progress, log

    def rollouts(
        self, prompts: Sequence[SampledPrompt], names: Sequence[str], engine: Engine, seed: int
    ) -> list[list[Rollout]]:
        """As RolloutMaker.rollouts."""
        keys = [f"{name}:{answer}" for name in names for answer in range(self.answers)]
        each_prompt = [prompt.tokens for prompt in prompts for _ in range(self.answers)]
        answers = iter(engine.sample(each_prompt, keys, seed))
        sampled = [[next(answers) for _ in range(self.answers)] for _ in prompts]
        if self._log is None:
            return self._graded(prompts, sampled)
        groups: list[list[Rollout]] = []
        while (begin := len(groups)) < len(prompts):
            self._progress.stop_if_requested()
            self._progress.report("grades", begin, len(prompts), "prompts")
            part = slice(begin, begin + GRADED_AT_ONCE)
            groups += self._logged(prompts[part], names[part], sampled[part], self._log)
        return groups

    def _logged(
        self, prompts: Sequence[SampledPrompt], names: Sequence[str], sampled: Sequence[Sequence[Sampled]], log: RolloutLog
    ) -> list[list[Rollout]]:
        """The groups of the log, of which those that it lacks are graded now."""
        new = [
            place for place, name in enumerate(names) if any(f"{name}:{answer}" not in log for answer in range(self.answers))
        ]  # a kill leaves some answers of a prompt
        graded = self._graded([prompts[place] for place in new], [sampled[place] for place in new])
        log.add_attempts(
            {
                f"{names[place]}:{rollout.attempt}": [rollout]
                for place, group in zip(new, graded, strict=True)
                for rollout in group
            }
        )
        return [log.attempts(name, self.answers) for name in names]

    def _graded(self, prompts: Sequence[SampledPrompt], sampled: Sequence[Sequence[Sampled]]) -> list[list[Rollout]]:
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
