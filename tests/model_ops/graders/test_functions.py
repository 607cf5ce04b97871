"""Functions of a user's file: the three forms, and what becomes of a function that raises, loops, forks or answers nonsense."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from model_ops.graders import AskedGroup, GradedAnswer
from model_ops.graders.functions import FunctionWorkers
from model_ops.jobs import ModelError

REWARDS = """
import asyncio, os, sys, time
import numpy
from beside import DOUBLE

def grade(prompt, answer, columns):
    return {"long": DOUBLE * len(answer), "asked": prompt[0]["content"] == "q", "text": columns["answer_text"]}

async def later(answer):
    await asyncio.sleep(0.01)
    return numpy.float32(answer == "x")

def trl(prompts, completions, solution, **kwargs):
    return [None if each is None else float(completion[0]["content"] == each) for completion, each in zip(completions, solution)]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "acc": True, "source": data_source, "n": extra_info["n"]}

def bad(answer):
    if answer == "raises":
        raise KeyError("a secret")
    if answer == "loops":
        while True: pass
    if answer == "loops in C":
        9 ** 9 ** 9
    if answer == "is no number":
        return float("nan")
    if answer == "is text":
        return "0.5"
    if answer == "forks" and os.fork() == 0:
        time.sleep(300)
    if answer == "ends":
        os._exit(0)
    if answer == "exits":
        raise SystemExit(0)
    if answer == "does not apply":
        return None
    print("x" * 100_000)
    sys.stdout.flush()
    return 0.25

def strange(x, y):
    return 1

def indexed(data_source, solution_str, ground_truth, extra_info):
    return float(extra_info["index"]) if solution_str == ground_truth else 0.0
"""
PROBLEMS = {
    "raises": "raised KeyError in line 21",
    "loops": "took longer than 2 s",
    "loops in C": "took longer than 2 s",
    "is no number": "answered a number that is not finite (NaN or infinity)",
    "is text": "answered str, which is no number",
    "forks": "left a process running",
    "ends": "ended its process",
    "exits": "raised SystemExit in line 35",
}


@pytest.fixture(scope="module")
def rewards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "beside.py").write_text("DOUBLE = 2\n")
    (folder / "rewards.py").write_text(REWARDS)
    return folder / "rewards.py"


def group(*answers, row_id="row-1", **columns):
    said = [GradedAnswer(f"<think>t</think>{text}", {"role": "assistant", "content": text}, len(text)) for text in answers]
    return AskedGroup(row_id, [{"role": "user", "content": "q"}], None, columns, said)


def values(path, function, *groups, seconds=30.0):
    with FunctionWorkers(path, function, seconds) as workers:
        return workers.grade(groups)


def test_a_function_of_prompt_answer_and_columns(rewards):
    ((first, second), (third,)) = values(rewards, "grade", group("x", "long"), group("yes"))
    assert first.parts == {"long": 2.0, "asked": 1.0} and first.value == 3.0
    assert [second.value, third.value] == [9.0, 7.0]


def test_an_async_function_and_a_number_of_numpy(rewards):
    assert [grade.value for grade in values(rewards, "later", group("x", "y"))[0]] == [1.0, 0.0]


def test_a_function_of_trl_gets_lists_and_its_none_does_not_apply(rewards):
    found = values(rewards, "trl", group("x", solution="<think>t</think>x"), group("y", solution=None))
    assert [found[0][0].value, found[1][0].value] == [1.0, None] and not found[1][0].problem


def test_a_function_of_verl_gets_the_generated_text_and_its_score_is_the_grade(rewards):
    held = {"reward_model": {"ground_truth": "<think>t</think>x"}, "extra_info": {"index": 7}, "answer": "y"}
    assert values(rewards, "indexed", group("x", **held))[0][0].value == 7.0
    ((right, wrong),) = values(rewards, "compute_score", group("x", "y", answer="<think>t</think>x", source="s", n=3))
    assert (right.value, right.parts) == (1.0, {"score": 1.0, "acc": 1.0, "n": 3.0})
    assert wrong.value == 0.0


def test_what_a_function_does_wrong_is_named_and_never_a_grade(rewards):
    asked = [*PROBLEMS, "does not apply", "works"]
    ((*failed, inapplicable, worked),) = values(rewards, "bad", group(*asked), seconds=2.0)
    assert {said: grade.problem for said, grade in zip(PROBLEMS, failed, strict=True)} == PROBLEMS
    assert {grade.value for grade in failed} == {None}
    assert (inapplicable.value, inapplicable.problem, worked.value) == (None, "", 0.25)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_no_process_is_left(rewards):
    values(rewards, "bad", group("forks", "loops"), seconds=1.0)
    assert running(rewards) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends a child with its parent on Linux")
def test_a_function_that_loops_ends_with_a_killed_run(rewards):
    script = f"""
from pathlib import Path
from model_ops.graders import AskedGroup, GradedAnswer
from model_ops.graders.functions import FunctionWorkers
with FunctionWorkers(Path({str(rewards)!r}), "bad", 300) as workers:
    workers.grade([AskedGroup("r", [], None, {{}}, [GradedAnswer("loops", {{"content": "loops"}})])])
"""
    run = subprocess.Popen([sys.executable, "-c", script])
    try:
        wait_until(lambda: running(rewards))
    finally:
        run.kill()
        run.wait()
    wait_until(lambda: not running(rewards))


def running(rewards: Path) -> list[str]:
    """Processes with this file on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if str(rewards).encode() in command and b"function_child" in command:
            found.append(path.parent.name)
    return found


def wait_until(holds, seconds=60.0):
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, "it did not happen"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("strange", r"rewards.py:strange takes \(x, y\), and a grader takes \(prompt, answer, columns\)"),
        ("missing", "rewards.py:missing has no function missing"),
        ("trl", "rewards.py:trl asks for `solution`, which no row brings; there are completion_ids, completions"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused(rewards, function, said):
    with pytest.raises(ModelError, match=said):
        values(rewards, function, group("x"))


def test_a_file_that_cannot_be_loaded_is_refused(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_like_it\n")
    with pytest.raises(ModelError, match="cannot be loaded: it raised ModuleNotFoundError of nothing_like_it in line 1"):
        values(tmp_path / "broken.py", "grade", group("x"))
    (tmp_path / "ends.py").write_text("import os\nos._exit(1)\n")
    with pytest.raises(ModelError, match="cannot be loaded: it ended its process"):
        values(tmp_path / "ends.py", "grade", group("x"))
    with pytest.raises(ModelError, match="has no file"):
        values(tmp_path / "absent.py", "grade", group("x"))
