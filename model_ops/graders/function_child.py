"""Grades answers with a function of a file, one at a time, until its input ends. Standard library only, beside what the file
imports.

    python -P function_child.py FILE FUNCTION        # a request is a line of JSON on standard input, its reply one on output

The first line says {"ready": true}, or {"refused": "why"}. A request holds `prompt` (messages), `answer` (its text), `text` (as
generated), `message` and `columns`; a reply holds `said`, or `problem` (`spent`: ask this process no more). The function is
recognised by its parameters:

    grade(prompt, answer, columns)                                           any of the three
    f(prompts, completions, **columns) -> [number or None]                   TRL, here with lists of one
    compute_score(data_source, solution_str, ground_truth, extra_info)       verl

It may be async. What it prints goes nowhere. It ends with its parent, and may leave no process behind.
"""

import asyncio
import ctypes
import importlib.util
import inspect
import json
import os
import signal
import sys
import traceback
from pathlib import Path

FORMS = "(prompt, answer, columns), TRL's (prompts, completions, **columns) or verl's (data_source, solution_str, ground_truth)"


class Refused(Exception):
    """The function cannot be used at all; the text says why."""


def load(path, name):
    sys.path.append(str(Path(path).parent))  # behind everything else: a module beside it replaces no library
    spec = importlib.util.spec_from_file_location("graders_of_a_file", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        raise Refused(f"cannot be loaded: it {raised(error, path)}") from error
    if not callable(function := getattr(module, name, None)):
        raise Refused(f"has no function {name}: name one that the file defines")
    return function


def raised(error, path):
    """The error without its text, which may hold an answer."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    missing = f" of {error.name}" if isinstance(error, ImportError) else ""
    return f"raised {type(error).__name__}{missing}" + (f" in line {line}" if line else "")


def arguments(parameters, asked):
    """What the function is given, by its parameters. Raises Refused."""
    columns, message, text = asked["columns"], asked["message"], asked["text"]
    if "completions" in parameters:
        message = message if message.get("tool_calls") else {**message, "content": text}
        ignore = {"trainer_state": None, "log_extra": lambda *_: None, "log_metric": lambda *_: None}
        given = {name: [each] for name, each in columns.items()} | ignore
        given |= {"prompts": [asked["prompt"]], "completions": [[message]]}
    elif "solution_str" in parameters:
        held = columns.get("reward_model")  # where verl's own rows have it
        truths = [held.get("ground_truth")] if isinstance(held, dict) else []
        truths = [each for each in (*truths, columns.get("ground_truth"), columns.get("answer")) if each is not None]
        extra = columns.get("extra_info")
        given = {"data_source": columns.get("data_source") or columns.get("source"), "ground_truth": (truths or [None])[0]}
        given |= {"solution_str": text, "extra_info": {**columns, **(extra if isinstance(extra, dict) else {})}}
    elif "answer" in parameters:
        columns = {**columns, "answer_text": text, "answer_message": message}
        given = {"prompt": asked["prompt"], "answer": asked["answer"], "columns": columns}
    else:
        raise Refused(f"takes ({', '.join(parameters)}), and a grader takes {FORMS}")
    kinds = {each.kind for each in parameters.values()}
    for name, each in parameters.items():
        if name not in given and each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
            raise Refused(f"asks for `{name}`, which no row brings; there are {', '.join(sorted(given))}")
    return given if inspect.Parameter.VAR_KEYWORD in kinds else {name: given[name] for name in parameters if name in given}


def processes():
    """Running processes that this one started; empty where the system does not say."""
    found = set()
    for children in Path("/proc/self/task").glob("*/children"):
        for process in children.read_text().split():
            try:
                state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
                tracks = "resource_tracker" in Path(f"/proc/{process}/cmdline").read_text()  # of multiprocessing: it stays
            except OSError:
                continue
            found |= set() if state == "Z" or tracks else {process}
    return found


def graded(function, asked, path, runner):
    """The reply to a request."""
    before, own = processes(), os.getpid()
    try:
        parameters = inspect.signature(function).parameters
        said = function(**arguments(parameters, asked))
        said = runner.run(waited(said)) if inspect.isawaitable(said) else said
        if "completions" in parameters:
            (said,) = said
        reply = json.dumps({"said": said}, default=float)
    except Refused as error:
        reply = json.dumps({"refused": str(error)})
    except BaseException as error:
        reply = json.dumps({"problem": raised(error, path)})
    if os.getpid() != own:
        os._exit(0)  # a copy of this process, which the function made and came back from
    return json.dumps({"problem": "left a process running", "spent": True}) if processes() - before else reply


async def waited(said):
    return await said


def main(path, name):
    if sys.platform == "linux":  # a function that loops ends with a killed run
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    asked, said, nowhere = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", buffering=1), os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    try:
        function = load(path, name)
    except Refused as error:
        said.write(json.dumps({"refused": str(error)}) + "\n")
        return
    with asyncio.Runner() as runner:
        said.write('{"ready": true}\n')
        for line in asked:
            said.write(graded(function, json.loads(line), path, runner) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
