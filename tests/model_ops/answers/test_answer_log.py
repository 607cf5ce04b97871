"""The log of answers: what was paid for is found again, by any process, whatever ended the one that wrote it."""

import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from model_ops.answers import (
    AnswerLog,
    GradedAnswers,
    RolloutChunk,
    RolloutLog,
    Sampled,
    SampledPrompt,
    pack_array,
    rollout_log,
    unpack_array,
)
from model_ops.files import replacement
from model_ops.graders import Grade, GradedAnswer
from model_ops.jobs import ModelError, Progress
from tests.conftest import PROJECT

WRITER = """
import sys
from pathlib import Path
from model_ops.answers import AnswerLog
log = AnswerLog(Path(sys.argv[1]))
for number in range(10_000):
    log.add({"key": f"{sys.argv[2]}-{number}", "text": "x" * 300})
    print(number, flush=True)
"""


def test_a_record_is_found_by_its_key_and_the_first_one_stays(tmp_path):
    values = np.array([0.1, np.nan, -0.0], np.float32)
    with AnswerLog(tmp_path / "work" / "answers.jsonl", note=lambda record: record["tokens"]) as log:
        log.add_all([{"key": "a", "tokens": 3, "values": pack_array(values)}, {"key": "b", "tokens": 4}])
        log.add({"key": "a", "tokens": 9})
        assert log.notes == {"a": 3, "b": 4} and "b" in log and log.find("c") is None
    with AnswerLog(tmp_path / "work" / "answers.jsonl") as again:
        assert unpack_array(again.find("a")["values"], np.float32).tobytes() == values.tobytes()
        assert list(again.notes) == ["a", "b"]


def test_a_line_that_a_kill_left_unfinished_is_cut_off_and_its_answer_asked_again(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_bytes(b'{"key": "a"}\n{"key": "b", "te\n{"key": "c"}\n{"key": "d", "te')
    with AnswerLog(path) as log:
        assert list(log.notes) == ["a", "c"]
        log.add({"key": "d"})
        assert log.find("d") == {"key": "d"}
    assert path.read_bytes().endswith(b'{"key": "c"}\n{"key": "d"}\n')


def test_a_full_disk_leaves_no_part_of_an_answer_and_the_log_goes_on(tmp_path):
    path, (before, most) = tmp_path / "answers.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    with AnswerLog(path) as log:
        log.add({"key": "a"})
        whole = path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 5, most))
        try:
            with pytest.raises(ModelError, match=r"answers\.jsonl takes no more answers \(File too large\): free disk space"):
                log.add({"key": "b"})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
        assert path.stat().st_size == whole and "b" not in log
        log.add({"key": "b"})
        assert log.find("b") == {"key": "b"}


def test_a_file_that_was_replaced_or_removed_is_opened_again_by_the_next_writer(tmp_path):
    path = tmp_path / "answers.jsonl"
    with AnswerLog(path) as log:
        log.add_all([{"key": "a"}, {"key": "b"}])
        with replacement(path) as temporary:  # as an erasure leaves it
            temporary.write_bytes(b'{"key": "b"}\n')
        log.add({"key": "c"})
        assert list(log.notes) == ["b", "c"] and log.find("b") == {"key": "b"} and log.find("a") is None
        path.unlink()
        log.add({"key": "d"})
        assert list(log.notes) == ["d"] and path.read_bytes() == b'{"key": "d"}\n'


def test_threads_add_and_find_at_once(tmp_path):
    with AnswerLog(tmp_path / "answers.jsonl") as log, ThreadPoolExecutor(8) as pool:

        def add(number):
            log.add({"key": f"{number}", "text": "x" * number})
            return len(log.find(f"{number}")["text"])

        assert list(pool.map(add, range(64))) == list(range(64))


def test_two_processes_share_a_file_and_a_kill_loses_nothing(tmp_path):
    path, last = tmp_path / "answers.jsonl", {}
    writers = {
        name: subprocess.Popen([sys.executable, "-c", WRITER, path, name], stdout=subprocess.PIPE, text=True, cwd=PROJECT)
        for name in "ab"
    }
    for name, writer in writers.items():
        said = next(line for line in writer.stdout if int(line) >= 20)
        writer.kill()
        last[name] = max([int(said), *(int(line) for line in writer.stdout.read().split() if line.isdigit())])
        writer.wait()
    with AnswerLog(path) as log:
        for name, count in last.items():
            assert all(log.find(f"{name}-{number}")["text"] == "x" * 300 for number in range(count))


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
