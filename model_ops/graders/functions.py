"""Runs a grading function of a file in worker processes that can be killed: one that loops, crashes or forks ends alone.

A call has `seconds` for each answer; a process that exceeds it is ended with all that it started. Calls of an async function
wait in one process; if it is lost, those that it had not answered are made again, each alone, so that one harms no other."""

from __future__ import annotations

import ast
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

from model_ops.graders.grade import AskedGroup, Grade, GradedAnswer, grades_of
from model_ops.jobs import ModelError
from model_ops.machine import pipe_of

Form = Literal["text", "messages"]
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
ROOTS = {"completions", "prompts"}
KEYS = {"content", "role", "tool_calls", "reasoning_content"}
"""Of messages."""
PASSING = {"list", "tuple", "zip", "enumerate", "reversed", "sorted", "filter", "iter", "next", "copy", "deepcopy", "chain"}
PASSING |= {"from_iterable", "islice", "zip_longest", "pop", "tqdm"}
"""Functions and methods that give back what they are given, or a part of it."""


def completion_form(path: Path, function: str) -> Form:
    """The form that `function` of the file reads. A file that cannot be parsed is refused by whoever loads it."""
    names, nodes = definitions(path, {}), list[ast.AST]()
    waiting = [names.get(function)]
    while waiting:
        if (node := waiting.pop()) is not None and node not in nodes:
            nodes.append(node)
            waiting += [names.get(_name(each)) for each in ast.walk(node)]
    functions = [each for node in nodes for each in ast.walk(node) if isinstance(each, Function)]
    of_trl = any(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)
    dicts = any(_is_of_dicts(each) for function in functions for each in _parameters(function))
    return "messages" if of_trl or dicts or _Reader(functions, names).reads_messages() else "text"


def definitions(path: Path, files: dict[Path, dict[str, ast.AST]]) -> dict[str, ast.AST]:
    """What the names of a file stand for: its functions, classes, methods and values, those of files beside it, and imports
    from TRL. files: those that are read already."""
    if path in files or not path.is_file():
        return files.get(path, {})
    names = files[path] = {}
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError, RecursionError):
        return names
    for node in [each for statement in body for each in (statement, *_inside(statement))]:
        if isinstance(node, Function | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.Assign):
            names |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                place = path.parent.joinpath(*(module or alias.name).split("."))
                for file in (place.with_suffix(".py"), place / "__init__.py", place / f"{alias.name}.py"):
                    theirs = definitions(file, files)
                    names |= {name: each for name, each in theirs.items() if name not in names}
                    if alias.asname and alias.name in theirs:
                        names[alias.asname] = theirs[alias.name]
                if (module or alias.name).partition(".")[0] == "trl":
                    names[alias.asname or alias.name.partition(".")[0]] = node
    return names


class _Reader:
    """Follows completions and prompts through functions. names: of `definitions`."""

    def __init__(self, functions: Sequence[Function], names: dict[str, ast.AST]):
        self._functions, self._names = functions, names
        self._by_name = names | {each.name: each for each in functions if not isinstance(each, ast.Lambda)}
        self._held = {each: {parameter.arg for parameter in _parameters(each)} & ROOTS for each in functions}
        """By function: its names that hold completions, prompts or parts of them."""

    def reads_messages(self) -> bool:
        before, nodes = -1, [(function, node) for function in self._functions for node in ast.walk(function)]
        while before < (before := sum(map(len, self._held.values()))):
            for function, node in nodes:
                held = self._held[function]
                for target, value in _bindings(node):
                    if self._holds(held, value):
                        held |= {
                            each.id
                            for each in ast.walk(target)
                            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
                        }
                if isinstance(node, ast.Call):
                    self._pass(held, node)
        return any(self._reads(self._held[function], node) for function, node in nodes)

    def _pass(self, held: set[str], call: ast.Call) -> None:
        """Into what is called: the function itself, or one that is among the arguments, as of map or sorted."""
        callbacks = [(each, call.args[place + 1 :]) for place, each in enumerate(call.args)]
        callbacks += [(each.value, call.args) for each in call.keywords]
        for called, arguments in [(call.func, call.args), *callbacks]:
            function = called if isinstance(called, ast.Lambda) else self._by_name.get(_name(called))
            if function not in self._held:
                continue
            parameters = [each.arg for each in _parameters(function) if each.arg not in ("self", "cls")]
            given = [*zip(parameters, arguments, strict=False), *((each.arg, each.value) for each in call.keywords)]
            self._held[function] |= {name for name, each in given if name in parameters and self._holds(held, each)}

    def _holds(self, held: set[str], node: ast.expr | None) -> bool:
        """Whether a value is completions, prompts or a part of them. The value of a message's key is none: it is a text."""
        match node:
            case ast.Name(id=name):
                return name in held
            case ast.Subscript(value=value, slice=key):
                return self._key(key) in ROOTS or (self._key(key) not in KEYS and self._holds(held, value))
            case ast.Call(func=called, args=args):
                looked_up = _name(called) in ("get", "pop") and args and self._key(args[0]) in ROOTS
                receiver = [called.value] if isinstance(called, ast.Attribute) else []
                return bool(looked_up) or (
                    _name(called) in PASSING and any(self._holds(held, each) for each in (*args, *receiver))
                )
            case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part) | ast.NamedExpr(value=part) | ast.Starred(value=part):
                return self._holds(held, part)
            case ast.IfExp(body=one, orelse=other) | ast.BinOp(left=one, right=other):
                return self._holds(held, one) or self._holds(held, other)
            case ast.BoolOp(values=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts):
                return any(self._holds(held, each) for each in parts)
        return False

    def _reads(self, held: set[str], node: ast.AST) -> bool:
        """Whether the key of a message is looked up."""
        match node:
            case ast.Subscript(value=value, slice=key):
                return self._key(key) in KEYS and self._holds(held, value)
            case ast.Call(func=ast.Attribute(value=value, attr="get"), args=[key, *_]):
                return self._key(key) in KEYS and self._holds(held, value)
            case ast.Match(subject=subject):
                patterns = [each for each in ast.walk(node) if isinstance(each, ast.MatchMapping)]
                return self._holds(held, subject) and any(self._key(key) in KEYS for each in patterns for key in each.keys)
        return False

    def _key(self, node: ast.AST) -> object:
        """The text of a constant, also of one with a name."""
        said = self._names.get(_name(node), node)
        return said.value if isinstance(said, ast.Constant) else None


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(what is bound, to what, or to parts of what), of assignments and loops."""
    value = getattr(node, "iter", None) or getattr(node, "value", None)
    for target in getattr(node, "targets", None) or [getattr(node, "target", None)]:
        if target is not None and value is not None:
            yield from _bound_in_turn(target, value)


def _bound_in_turn(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """As _bindings: each name of `for a, b in zip(c, d)` is bound to its own values."""
    if isinstance(value, ast.Call) and isinstance(target, ast.Tuple):
        if _name(value.func) == "enumerate":
            return (yield from _bound_in_turn(target.elts[-1], value.args[0]))
        if _name(value.func) in ("zip", "zip_longest"):
            for each, of in zip(target.elts, value.args, strict=False):
                yield from _bound_in_turn(each, of)
            return
    yield target, value


def _inside(statement: ast.stmt) -> list[ast.stmt]:
    """Methods of a class, and what `if` and `try` define."""
    return statement.body if isinstance(statement, ast.ClassDef | ast.If | ast.Try) else []


def _parameters(function: Function) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _is_of_dicts(parameter: ast.arg) -> bool:
    said = ast.unparse(parameter.annotation).lower() if parameter.annotation else ""
    return parameter.arg in ROOTS and ("dict" in said or "message" in said)


def _name(node: ast.AST) -> str:
    """The name that an expression ends with."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


CHILD = Path(__file__).with_name("function_child.py")
STARTING_SECONDS = 120.0
"""Most seconds in which a file is loaded: it may import torch on a busy machine."""
LOOK_SECONDS = 1.0
"""Seconds after which clocks are looked at again: those of agents stand still while the model answers."""
WORKERS = 4
"""Processes. Functions often wait for a server, so the number of cores is no bound."""
Worker = TypeVar("Worker", bound="Child")
GRACE_SECONDS = 5.0
"""Of a process whose calls wait at once, which looks at its clock itself."""


class Child:
    """A process that runs code of a user, and the request that it works on. output: where it writes lines."""

    def __init__(self, output: int):
        self.output, self._read = output, b""
        self.request: int | None = None
        self.ready, self.until_s, self.limit_s = False, time.monotonic() + STARTING_SECONDS, STARTING_SECONDS
        """until_s: when it is late. limit_s: most seconds, for messages."""

    def write(self, line: bytes) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Kills the process with all of its group."""
        raise NotImplementedError

    def ask(self, request: int, line: bytes, seconds: float) -> None:
        self.request, self.until_s, self.limit_s = request, time.monotonic() + seconds, seconds
        with suppress(ConnectionError):  # it has ended, which its output says
            self.write(line)

    def replies(self) -> list[dict[str, Any]]:
        """The lines that it wrote. Raises EOFError where it has ended."""
        part = os.read(self.output, 1 << 16)
        if not part:
            raise EOFError
        *lines, self._read = (self._read + part).split(b"\n")
        return [json.loads(line) for line in lines]


def heard(children: Sequence[Worker]) -> list[tuple[Worker, dict[str, Any]]]:
    """The next replies of some children, also in the name of processes that have ended or are late; none after LOOK_SECONDS."""
    pause = min(child.until_s for child in children) - time.monotonic()
    readable = select.select([child.output for child in children], [], [], min(max(0.0, pause), LOOK_SECONDS))[0]
    replies_of: list[tuple[Worker, dict[str, Any]]] = []
    for child in children:
        problem = f"took longer than {child.limit_s:g} s" if time.monotonic() > child.until_s else ""
        if child.output in readable:
            try:
                replies, problem = child.replies(), ""
                replies_of += [(child, reply) for reply in replies]
            except (EOFError, ConnectionError):
                problem = "ended its process"
        if problem:
            lost = {"problem": problem, "spent": True} if child.ready else {"refused": f"cannot be loaded: it {problem}"}
            replies_of.append((child, lost))
    return replies_of


class _Started(Child):
    """A process that was started with a command, which talks through pipes."""

    def __init__(self, command: Sequence[str]):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._input, self._output = pipe_of(self.process.stdin), pipe_of(self.process.stdout)
        super().__init__(self._output.fileno())

    def write(self, line: bytes) -> None:
        self._input.write(line)
        self._input.flush()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self._input, self._output):
            with suppress(BrokenPipeError):
                pipe.close()


class FunctionWorkers:
    """Processes that hold one function. To be used by the thread that made it, whose end ends them."""

    def __init__(self, path: Path, function: str, seconds: float, completions: Form | None = None):
        """completions: what TRL's form is given; None: what the function reads. Raises ModelError for a file that is not
        there."""
        self.name, self.seconds = f"{path.name}:{function}", seconds
        if not path.is_file():
            raise ModelError(f"the grader {self.name} has no file: there is no {path}")
        self.form = completions or completion_form(path, function)
        self._command = (sys.executable, "-P", str(CHILD), str(path.resolve()), function, self.form)
        self._children: list[_Started] = []
        self.whole = self._waits = self._blocks = False
        """Once it is opened. whole: whether a call has all answers to a prompt, as in TRL's form. _waits: whether calls wait at
        once, unless the function blocks."""

    def __enter__(self) -> FunctionWorkers:
        """Raises ModelError if the function cannot be loaded."""
        self._children.append(child := _Started(self._command))
        try:
            while not child.ready:
                for _, reply in heard([child]):
                    self._take(child, reply)
        except ModelError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        while self._children:
            self._children.pop().end()

    def grade(self, groups: Sequence[AskedGroup]) -> list[list[Grade]]:
        """Raises ModelError if the function asks for what no row brings."""
        calls = [
            _call(group, answers)
            for group in groups
            for answers in ([group.answers] if self.whole else [[each] for each in group.answers])
            if answers
        ]
        said = chain.from_iterable(self._replies(calls))
        return [grades_of([next(said) for _ in group.answers]) for group in groups]

    def _take(self, child: _Started, reply: dict[str, Any]) -> None:
        """A first line. Raises ModelError where it refuses the function."""
        if "refused" in reply:
            raise ModelError(f"the grader {self.name} {reply['refused']}")
        self.whole, self._waits = reply["whole"], self._waits or reply["waits"]
        child.ready, child.until_s = True, math.inf

    def _replies(self, calls: list[dict[str, Any]]) -> list[list[Any]]:
        """What was said of each answer of each call: a value, or a Grade with a problem."""
        said: dict[int, list[Any]] = {}
        begun, batches = 0, [[place] for place in range(len(calls))]
        if self._waits and not self._blocks:
            batches = [[*range(len(calls))]]
        while len(said) < len(calls):
            busy = sum(child.request is not None for child in self._children)
            while len(self._children) < min(WORKERS, busy + len(batches) - begun):
                self._children.append(_Started(self._command))
            for child in self._children:
                if child.ready and child.request is None and begun < len(batches):
                    self._ask(child, begun, [{"call": place, **calls[place]} for place in batches[begun]])
                    begun += 1
            for child, reply in heard(self._children):
                if "refused" in reply or not child.ready:
                    self._take(child, reply)
                    continue
                left = [] if child.request is None else [each for each in batches[child.request] if each not in said]
                if reply.get("waits") and not self._waits:  # a wrapper did not show it
                    self._waits, rest = True, [*chain.from_iterable(batches[begun:])]
                    batches[begun:] = [rest] if rest else []
                if "call" not in reply and len(left) > 1:
                    self._blocks |= "took longer" in reply["problem"]
                    batches += [[each] for each in left]
                elif left:
                    ended = reply.get("call", left[0])
                    problem = [Grade(problem=reply["problem"])] * len(calls[ended]["answers"]) if "problem" in reply else []
                    said[ended] = problem or reply["said"]
                    left.remove(ended)
                    if left:
                        child.until_s = time.monotonic() + child.limit_s + GRACE_SECONDS
                        continue
                child.request, child.until_s = None, math.inf
                if "spent" in reply:
                    self._children.remove(child)
                    child.end()
        return [said[place] for place in range(len(calls))]

    def _ask(self, child: _Started, request: int, calls: list[dict[str, Any]]) -> None:
        seconds = self.seconds * max(len(call["answers"]) for call in calls)
        child.ask(request, json.dumps({"seconds": seconds, "calls": calls}, default=str).encode() + b"\n", seconds)
        child.until_s += GRACE_SECONDS if len(calls) > 1 else 0.0


def _call(group: AskedGroup, answers: Sequence[GradedAnswer]) -> dict[str, Any]:
    return {
        "prompt": group.messages,
        "columns": dict(group.columns),
        "training": group.training,
        "answers": [{"answer": each.content, "text": each.text, "message": each.message, "ids": each.ids} for each in answers],
    }
