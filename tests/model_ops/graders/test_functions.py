"""Functions of a user's file: the three forms, TRL's calls, and what becomes of a function that raises, loops, forks or answers
nonsense."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from model_ops.graders import AskedGroup, GradedAnswer, Grader, GraderSettings, functions
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
OF_TRL = """
import asyncio, functools, os, time
import numpy

class Box:
    shape = (2,)
    def __init__(self, values): self.values = values
    def __iter__(self): return iter(map(numpy.asarray, self.values))

async def later(completions, **kwargs):
    await asyncio.sleep(0.5)
    if "blocks" in completions[0]:
        time.sleep(300)
    if "ends" in completions[0]:
        os._exit(1)
    if "waits" in completions[0]:
        await asyncio.sleep(300)
    return [float(len(completion)) for completion in completions]

async def own(answer):
    await asyncio.sleep(0.5)
    return float(len(answer))

def rank(completions, **kwargs):
    return [float(sorted(completions).index(each)) for each in completions]

def sizes(prompts, completions, n, **kwargs):
    given = (prompts, completions, n, *(kwargs[name] for name in ("tags", "completion_ids")))
    for tags in kwargs["tags"]:
        tags.append("mine")
    return [{"n": n[place], "score": sum(len(each) == 2 for each in given), "tags": len(kwargs["tags"][place])} for place in (0, 1)]

def ids(completions, completion_ids, **kwargs): return [float(sum(each)) for each in completion_ids]

def step(completions, trainer_state, **kwargs):
    try:
        return [trainer_state.global_step / trainer_state.max_steps] * len(completions)
    except Exception:
        return [0.0] * len(completions)

def talk(prompts, completions):
    return [float(len(c[0]["content"]) + len(p[-1]["content"])) for p, c in zip(prompts, completions)]

def wrapped(function):
    def inner(*args, **kwargs): return function(*args, **kwargs)
    return inner

class Timed:
    def __init__(self, function): self.function = function
    def __call__(self, *args, **kwargs): return self.function(*args, **kwargs)

class Instance:
    __name__ = "instance"
    def __call__(self, completions, **kwargs): return [float(len(each)) for each in completions]

class Awaited:
    async def __call__(self, completions): return [float(len(each)) for each in completions]

class Needs:
    def __init__(self, model): pass
    def __call__(self, completions): return []

def weighted(weight, completions, **kwargs): return [weight * len(each) for each in completions]
def everything(**kwargs): return [float(len(each)) for each in kwargs["completions"]]

@wrapped
def hidden(completions): return [float(len(each)) for each in completions]
@wrapped
async def hidden_later(completions): return [float(len(each)) for each in completions]
def slow(completions):
    time.sleep(1.5)
    return [1.0] * len(completions)
async def blocks(completions):
    time.sleep(0.6)
    return [1.0]
@wrapped
async def hidden_wait(completions):
    await asyncio.sleep(0.5)
    return [float(len(each)) for each in completions]
@wrapped
def hidden_own(answer): return float(len(answer))
timed, instance, awaited, lambdas = Timed(Timed(hidden)), Instance(), Awaited(), lambda completions, **k: [*map(len, completions)]
part = functools.partial(functools.partial(weighted, 1.0))

def array(completions, **kwargs): return numpy.array([0.5] * len(completions))
def box(completions, **kwargs): return Box([0.5] * len(completions))
def boolean(completions, **kwargs): return [numpy.bool_(True)] * len(completions)
def generator(completions, **kwargs): return (0.5 for _ in completions)
def none(completions, **kwargs): return None
def scalar(completions, **kwargs): return 0.5
def zero_d(completions, **kwargs): return numpy.float32(0.5)
def named(completions, **kwargs): return {"score": [0.5] * len(completions)}
def short(completions, **kwargs): return [0.5]
def text(completions, **kwargs): return ["0.5"] * len(completions)
def some(completions, **kwargs): return [None if each == "xx" else {"a": 1.0, "b": None if each == "x" else 0.5} for each in completions]
def one_raises(completions, **kwargs): return [1 / (len(each) - 2) for each in completions]
"""
PROBLEMS = {"raises": "raised KeyError in line 21", "loops": "took longer than 2 s", "loops in C": "took longer than 2 s",
    "is no number": "answered a number that is not finite (NaN or infinity)", "is text": "answered str, which is no number",
    "forks": "left a process running", "ends": "ended its process", "exits": "raised SystemExit in line 35"}  # fmt: skip


@pytest.fixture(scope="module")
def rewards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "beside.py").write_text("DOUBLE = 2\n")
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "of_trl.py").write_text(OF_TRL)
    return folder / "rewards.py"


@pytest.fixture(scope="module")
def of_trl(rewards):
    return rewards.with_name("of_trl.py")


def plain(*answers, training=None, **columns):
    said = [GradedAnswer(text, {"role": "assistant", "content": text}, 1, [*map(ord, text)]) for text in answers]
    asked = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    return AskedGroup("row-1", asked, None, columns, said, training)


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


def test_a_function_of_trl_is_called_once_for_all_answers_to_a_prompt(of_trl):
    found = values(of_trl, "rank", plain("c", "a", "b"), plain("b", "a"))
    assert [[grade.value for grade in of_group] for of_group in found] == [[2.0, 0.0, 1.0], [1.0, 0.0]]


def test_a_function_of_trl_gets_a_list_for_each_column_whose_values_are_its_own(of_trl):
    ((first, second),) = values(of_trl, "sizes", plain("x", "yy", n=3, tags=["t"]))
    assert (first.value, dict(first.parts)) == (5.0, {"n": 3.0, "score": 5.0, "tags": 2.0}) and second == first


def test_completions_and_prompts_are_messages_where_the_source_reads_them_and_else_texts(of_trl):
    assert [grade.value for grade in values(of_trl, "talk", plain("abc", "a"))[0]] == [4.0, 2.0]
    with FunctionWorkers(of_trl, "instance", 30.0, "messages") as workers:
        assert [grade.value for grade in workers.grade([plain("abc", "a")])[0]] == [1.0, 1.0]


@pytest.mark.parametrize(
    "name",
    [
        "everything",
        "hidden",
        "hidden_later",
        "hidden_own",
        "timed",
        "instance",
        "Instance",
        "awaited",
        "Awaited",
        "lambdas",
        "part",
        "own",
    ],
)
def test_a_function_is_known_behind_wrappers_partials_and_classes(of_trl, name):
    assert [grade.value for grade in values(of_trl, name, plain("a", "bcd"))[0]] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("name", "said"),
    {
        "array": [0.5, 0.5],
        "box": [0.5, 0.5],
        "boolean": [1.0, 1.0],
        "generator": [0.5, 0.5],
        "none": ["answered NoneType, and not a list with a number for each answer"] * 2,
        "scalar": ["answered float, and not a list with a number for each answer"] * 2,
        "zero_d": ["answered float32, and not a list with a number for each answer"] * 2,
        "named": ["answered dict, and not a list with a number for each answer"] * 2,
        "short": ["answered 1 numbers for 2 answers"] * 2,
        "text": ["answered str, which is no number"] * 2,
        "one_raises": ["raised ZeroDivisionError in line 96"] * 2,
    }.items(),
)
def test_what_a_function_of_trl_returns(of_trl, name, said):
    found = values(of_trl, name, plain("a", "bc"), plain("abc"))
    assert [grade.problem or grade.value for grade in found[0]] == said
    assert name != "one_raises" or found[1][0].value == 1.0, "its other groups have grades"


def test_a_dict_with_none_where_another_answer_has_a_number_is_no_sum(of_trl):
    found = values(of_trl, "some", plain("x", "abc", "xx"), plain("x", "x"))
    assert [[grade.value for grade in of_group] for of_group in found] == [[None, 1.5, None], [1.0, 1.0]]
    assert dict(found[0][0].parts) == {"a": 1.0} and not any(grade.problem for grade in found[0])


def test_ids_and_the_state_of_the_training_are_given_where_they_are_known_and_else_refused(of_trl):
    state = {"global_step": 3, "max_steps": 12, "epoch": 0.5}
    assert values(of_trl, "ids", plain("ab"))[0][0].value == ord("a") + ord("b")
    assert values(of_trl, "step", plain("a", training=state))[0][0].value == 0.25
    with pytest.raises(ModelError, match=r"of_trl.py:ids asks for `completion_ids`, which is not known for these answers$"):
        values(of_trl, "ids", group("x"))
    with pytest.raises(ModelError, match=r"asks for `trainer_state.global_step`, which is not known for these answers$"):
        values(of_trl, "step", plain("a"))
    said = r"asks for `trainer_state.max_steps`, which is not known for these answers; known are global_step$"
    with pytest.raises(ModelError, match=said):
        values(of_trl, "step", plain("a", training={"global_step": 3}))
    with pytest.raises(ModelError, match=r"of_trl.py:Needs is a class that cannot be made without arguments"):
        values(of_trl, "Needs", plain("a"))


@pytest.mark.parametrize(("name", "count"), [("later", 80), ("own", 27), ("hidden_wait", 80)])
def test_calls_of_an_async_function_wait_at_once(of_trl, name, count):
    with FunctionWorkers(of_trl, name, 30.0) as workers:
        began = time.monotonic()
        found = workers.grade([plain("a", "bc", "def")] * count)
        assert time.monotonic() - began < 6, "four at a time take 10 s"
    assert [[grade.value for grade in of_group] for of_group in found] == [[1.0, 2.0, 3.0]] * count


def test_a_call_has_seconds_for_each_of_its_answers(of_trl):
    ((*found,),) = values(of_trl, "slow", plain(*"abcd"), seconds=0.75)
    assert [grade.value for grade in found] == [1.0] * 4, "1.5 s for four answers, of 3 s"


def test_an_async_function_that_blocks_is_called_alone_from_then_on(of_trl, monkeypatch):
    monkeypatch.setattr(functions, "GRACE_SECONDS", 0.0)
    with FunctionWorkers(of_trl, "blocks", 1.5) as workers:
        assert [grade.value for (grade,) in workers.grade([plain(each) for each in "abcd"])] == [1.0] * 4
        first = [child.process.pid for child in workers._children]
        assert [grade.value for (grade,) in workers.grade([plain(each) for each in "abcd"])] == [1.0] * 4
        assert [child.process.pid for child in workers._children] == first, "no process was late again"


def test_an_async_call_that_hangs_blocks_or_ends_its_process_harms_no_other(of_trl, monkeypatch):
    monkeypatch.setattr(functions, "GRACE_SECONDS", 0.5)
    asked = ["a", "waits", "b", "blocks", "c", "ends", "d"]
    found = values(of_trl, "later", *map(plain, asked), seconds=1.5)
    late, lost = "took longer than 1.5 s", "ended its process"
    assert [grade.problem or grade.value for (grade,) in found] == [1.0, late, 1.0, late, 1.0, lost, 1.0]


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


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_a_grader_with_a_part_that_cannot_be_used_leaves_no_process(rewards):
    parts = {"bad": {"by": f"{rewards}:bad"}, "missing": {"by": f"{rewards}:missing"}}
    grader = Grader(GraderSettings.model_validate({"parts": parts}), "rft.grader")
    with pytest.raises(ModelError, match="has no function missing"), grader:
        pass
    assert running(rewards) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends a child with its parent on Linux")
def test_a_function_that_loops_ends_with_a_killed_run(rewards):
    script = f"""
from pathlib import Path
from model_ops.graders import AskedGroup, GradedAnswer, Grader, GraderSettings, functions
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
