"""Grades answers with a function of a file until its input ends. Standard library only, beside what the file imports.

    python -P function_child.py FILE FUNCTION FORM     # a request is a line on standard input, its replies lines on output

The lines are JSON. The first one says {"ready": true}, or {"refused": "why"}; `whole`: whether a call has all answers to a
prompt; `waits`: whether calls may wait at once. A request holds `seconds` and `calls`: {call (its number), prompt (messages),
columns, training, answers: [{answer (its text), text (as generated), message, ids}]}. A call's reply holds `call` and `said`, a
value for each answer, and `waits`, or `problem` (`spent`: ask this process no more). FORM is that of TRL's completions, text or
messages. The function, an instance, or a class that is made without arguments is known by its parameters, also in a wrapper:

    grade(prompt, answer, columns)                                           any of the three, for each answer
    f(prompts, completions, completion_ids, trainer_state, **columns)        TRL: any of them, once for all answers to a prompt
    compute_score(data_source, solution_str, ground_truth, extra_info)       verl, for each answer

It may be async. What it prints goes nowhere. It ends with its parent, and may leave no process behind."""

import asyncio
import copy
import ctypes
import functools
import importlib.util
import inspect
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path

FORMS = "(prompt, answer, columns), TRL's (prompts, completions, **columns) or verl's (data_source, solution_str, ground_truth)"
OF_TRL, OF_VERL, OWN = {"completions", "prompts", "completion_ids"}, {"solution_str"}, {"answer"}
"""Parameters by which a form is known."""
UNKNOWN: list[str] = []
"""Why the function is refused, where it asked for what is not known here: also where it catches the exception."""


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


class NotKnown:
    """Stands for a value that is not known here, or for a state of which `known` is: whoever reads anything else is refused."""

    def __init__(self, name, **known):
        self.__dict__.update(known)
        self._name, self._known = name, f"; known are {', '.join(sorted(known))}" if known else ""

    def _refuse(self, *_):
        UNKNOWN.append(f"asks for `{self._name}`, which is not known for these answers{self._known}")
        raise Refused(UNKNOWN[-1])

    __iter__ = __len__ = __getitem__ = _refuse

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        self._name += f".{name}"
        self._refuse()


class Function:
    """A function, and what it takes. Raises Refused for one that no grader can be."""

    def __init__(self, function, form):
        try:
            self.call = function() if isinstance(function, type) else function
        except BaseException as error:
            raise Refused("is a class that cannot be made without arguments: name an instance of it") from error
        self.form, self.waits, self.parameters = form, is_async(self.call), parameters_of(self.call)
        if all(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in self.parameters.values()):
            self.parameters = parameters_of(wrapped_in(self.call) or self.call)
        names, others = set(self.parameters), OF_VERL | OWN
        self.takes_all = any(each.kind == each.VAR_KEYWORD for each in self.parameters.values())
        self.whole = bool(names & OF_TRL) or (self.takes_all and not names & others)
        if not self.whole and not names & others:
            raise Refused(f"takes ({', '.join(self.parameters)}), and a grader takes {FORMS}")

    def arguments(self, call):
        """What the function is given. Raises Refused."""
        given = of_trl(call, self.form) if self.whole else of_verl(call) if "solution_str" in self.parameters else own(call)
        for name, each in self.parameters.items():
            if name not in given and each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
                raise Refused(f"asks for `{name}`, which no row brings; there are {', '.join(sorted(given))}")
        return given if self.takes_all else {name: given[name] for name in self.parameters if name in given}


def is_async(function):
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def parameters_of(function):
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise Refused(f"has no parameters that can be read, and a grader takes {FORMS}") from error


def wrapped_in(function, seen=()):
    """The function inside one that takes (*args, **kwargs), if its parameters say what it is."""
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    for each in (*cells, *getattr(function, "__dict__", {}).values()):
        if callable(each) and not isinstance(each, type) and not any(each is other for other in seen):
            with suppress(Refused):
                known = {*parameters_of(each)} & (OF_TRL | OF_VERL | OWN)
                if inner := each if known else wrapped_in(each, (*seen, function, each)):
                    return inner
    return None


def of_trl(call, form):
    """Lists of a value for each answer, each of its own: functions change what they are given."""
    answers = call["answers"]
    prompt = call["prompt"] if form == "messages" else "\n\n".join(each.get("content") or "" for each in call["prompt"])
    messages = [
        [each["message"] | ({} if each["message"].get("tool_calls") else {"content": each["text"]})] for each in answers
    ]
    ids = [each["ids"] for each in answers]
    given = {name: [copy.deepcopy(each) for _ in answers] for name, each in call["columns"].items()}
    return given | {
        "prompts": [copy.deepcopy(prompt) for _ in answers],
        "completions": messages if form == "messages" else [each["text"] for each in answers],
        "completion_ids": NotKnown("completion_ids") if None in ids else ids,
        "trainer_state": NotKnown("trainer_state", **(call["training"] or {})),
        "log_extra": lambda *_, **__: None,
        "log_metric": lambda *_, **__: None,
    }


def of_verl(call):
    columns, (answer,) = call["columns"], call["answers"]
    held = columns.get("reward_model")  # where verl's own rows have it
    truths = [held.get("ground_truth")] if isinstance(held, dict) else []
    truths = [each for each in (*truths, columns.get("ground_truth"), columns.get("answer")) if each is not None]
    extra = columns.get("extra_info")
    given = {"data_source": columns.get("data_source") or columns.get("source"), "ground_truth": (truths or [None])[0]}
    return given | {"solution_str": answer["text"], "extra_info": {**columns, **(extra if isinstance(extra, dict) else {})}}


def own(call):
    (answer,) = call["answers"]
    columns = {**call["columns"], "answer_text": answer["text"], "answer_message": answer["message"]}
    return {"prompt": call["prompt"], "answer": answer["answer"], "columns": columns}


def processes():
    """Running processes that this one started; empty where the system does not say."""
    processes = set()
    for children in Path("/proc/self/task").glob("*/children"):
        for process in children.read_text().split():
            try:
                state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
                tracks = "resource_tracker" in Path(f"/proc/{process}/cmdline").read_text()  # of multiprocessing: it stays
            except OSError:
                continue
            processes |= set() if state == "Z" or tracks else {process}
    return processes


def serve(function, request, path, runner, say):
    """Makes the calls of a request, and says the reply to each. Those of a function that waits all wait at once; it is late
    once none has ended for `seconds`."""
    calls, own, before, last = request["calls"], os.getpid(), processes(), []
    returned = [begun(function, call) for call in calls]

    def reply(call, said):
        while last:
            say(json.dumps(last.pop()))
        last.append({"call": call["call"], **said})

    async def replies():
        tasks = {
            asyncio.create_task(reply_to(function, call, each, path)): call for call, each in zip(calls, returned, strict=True)
        }
        pending = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, timeout=request["seconds"], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                reply(tasks[task], task.result())
            if not done:
                for task in pending:
                    reply(tasks[task], {"problem": f"took longer than {request['seconds']:g} s", "spent": True})
                return

    if os.getpid() == own:
        runner.run(replies())
    if os.getpid() != own:
        os._exit(0)  # a copy of this process, which the function made and came back from
    if processes() - before:
        last[0] |= {"problem": "left a process running", "spent": True} if len(calls) == 1 else {"spent": True}
    say(json.dumps(last.pop()))


def begun(function, call):
    """What a call gave: a value, something to wait for, or its error. Outside of a loop, because a function may run its own."""
    try:
        return function.call(**function.arguments(call))
    except BaseException as error:
        return error


async def reply_to(function, call, returned, path):
    waits = inspect.isawaitable(returned)
    try:
        if isinstance(returned, BaseException):
            raise returned
        said = await returned if waits else returned
        reply = listed(said, len(call["answers"])) if function.whole else {"said": [said]}
        reply = json.loads(json.dumps({**reply, "waits": waits}, default=float))
    except Refused as error:
        reply = {"refused": str(error)}
    except BaseException as error:
        reply = {"problem": raised(error, path)}
    return {"refused": UNKNOWN[0]} if UNKNOWN else reply


def listed(said, count):
    """The values in what a function of TRL's form returned: a list, an array or a tensor of one for each answer."""
    if isinstance(said, str | bytes | dict | set) or not hasattr(type(said), "__iter__") or getattr(said, "shape", None) == ():
        return {"problem": f"answered {type(said).__name__}, and not a list with a number for each answer"}
    said = list(said)
    return {"said": said} if len(said) == count else {"problem": f"answered {len(said)} numbers for {count} answers"}


async def waited(said):
    return await said


def main(path, name, form):
    if sys.platform == "linux":  # a function that loops ends with a killed run
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    asked, said, nowhere = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", buffering=1), os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)

    def say(line):
        said.write(line + "\n")

    try:
        function = Function(load(path, name), form)
    except Refused as error:
        say(json.dumps({"refused": str(error)}))
        return
    with asyncio.Runner() as runner:
        say(json.dumps({"ready": True, "whole": function.whole, "waits": function.waits}))
        for line in asked:
            serve(function, json.loads(line), path, runner, say)


if __name__ == "__main__":
    main(*sys.argv[1:])
