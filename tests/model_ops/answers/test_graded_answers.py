"""Graded answers: what a kill left of them in the log, and what is graded again."""

import numpy as np
import pytest

from model_ops.answers import GradedAnswers, RolloutChunk, RolloutLog, Sampled, SampledPrompt, rollout_log
from model_ops.graders import Grade, GradedAnswer
from model_ops.jobs import ModelError, Progress

PROMPTS = [SampledPrompt(f"p{number}", "", [5, number], [], None, {}) for number in range(2)]


class Reader:
    def __init__(self, tokenizer):
        pass

    def read(self, prompt, tokens, ended):
        return GradedAnswer("", {"role": "assistant", "content": ""}, len(tokens)), True


class Engine:
    def sample(self, prompts, names, seed):
        return [Sampled(np.array([number, 2], np.int32), np.zeros(2, np.float32), 0, True) for number in range(len(prompts))]


class CountingGrader:
    def __init__(self):
        self.graded = []

    def grade(self, groups):
        self.graded += [group.row_id for group in groups]
        return [[Grade(float(place)) for place, _ in enumerate(group.answers)] for group in groups]


def test_a_prompt_of_which_a_kill_left_some_answers_is_graded_again_and_its_group_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_log, "AnswerReader", Reader)

    def rollouts():
        grader = CountingGrader()
        with RolloutLog(tmp_path / "log.jsonl") as log:
            made = GradedAnswers(grader, None, 3, lambda version: {}, Progress(), log)
            return made.rollouts(PROMPTS, ["0:0", "0:1"], Engine(), 0), grader.graded

    first, graded = rollouts()
    lines = (tmp_path / "log.jsonl").read_bytes().splitlines(keepends=True)
    assert graded == ["p0", "p1"] and len(lines) == 6
    (tmp_path / "log.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:20])
    again, graded = rollouts()
    assert graded == ["p1"]
    of = [[(each.attempt, each.grade.value, each.tokens.tolist()) for each in group] for group in again]
    assert of == [[(n, float(n), [first_token + n, 2]) for n in range(3)] for first_token in (0, 3)]
    assert [[each.tokens.tolist() for each in group] for group in first] == [[tokens for *_, tokens in group] for group in of]


def test_a_chunk_without_an_attempt_is_refused(tmp_path):
    with (
        RolloutLog(tmp_path / "log.jsonl") as log,
        pytest.raises(ModelError, match=r"log\.jsonl lacks attempt 0 at prompt 0:4"),
    ):
        RolloutChunk(0, [4], ["0:4"], [1], 0, [[]], log).groups()
