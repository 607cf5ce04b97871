"""Holds the environments of a file, or runs its agents, each in a process of its own that is forked from this one. Beside what
the file imports it uses pydantic. Any interpreter from Python 3.11 on runs it.

    python -P environment_child.py FILE NAME         # standard input is a socket: for each socket that it brings, a process

This process loads the file once and says {"ready": true} or {"refused": "why"}. A forked process says {"ready": its id}, and
answers requests, each a line of JSON, until its socket ends:

    {"make": {}}                                      nothing: NAME() makes the object at the first request, this one
    {"about": {}}                                     the tools, as OpenAI's API describes them; what else the object has
    {"reset": row}                                    what `reset` returns; a `reset` without a parameter `row` gets the columns
    {"calls": [{"name": ..., "arguments": {...}}]}    for each call the text that the model reads
    {"reply": message}                                what a simulated user says, or null
    {"reward": messages}                              what `reward`, or TRL's `get_reward`, returns; a `reward` with a parameter
                                                      `messages` gets the whole conversation
    {"run": {"row": ..., ...}}                        of an agent, for which nothing is made: what NAME(row=..., ...) returns

A request may also have `seed`, a text with which random numbers begin: forked processes would else all draw the same.

A reply holds `said` or `problem`. Methods may be async. Arguments that a tool does not take, and a ValueError of a tool, are
the model's mistakes: it reads their text. Any other error is a problem of the environment, and its text stays here."""

import asyncio
import ctypes
import functools
import inspect
import json
import os
import random
import re
import signal
import socket
import sys
import typing
import zlib
from pathlib import Path

from pydantic import ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError

HERE = str(Path(__file__).parents[2])
sys.path.append(HERE)  # behind the interpreter's own packages, and only for the next line
from model_ops.graders import function_child  # noqa: E402

sys.path.remove(HERE)
Refused = function_child.Refused
NO_TOOLS = ("reset", "reward", "get_reward", "reply")
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Tool:
    """A method that the model may call. Raises Refused for one that cannot be described."""

    def __init__(self, name, function):
        self.name = name
        text, about = documented(inspect.getdoc(function) or "")
        if not text:
            raise Refused(f"has a tool {name} without a docstring, which tells the model what it is for")
        parameters = list(inspect.signature(function).parameters.values())[1:]
        try:
            hints = typing.get_type_hints(function)
        except Exception as error:
            raise Refused(f"has a tool {name} with a type hint that is not defined") from error
        self.names, fields = {}, {}
        for number, each in enumerate(parameters):
            if each.kind not in NAMED or each.name not in hints:
                raise Refused(f"has a tool {name} whose parameter {each.name} has no name or no type hint")
            default = ... if each.default is each.empty else each.default
            self.names[f"p{number}"] = each.name  # a field of pydantic may not have every name
            fields[f"p{number}"] = (hints[each.name], Field(default, alias=each.name, description=about.get(each.name)))
        try:
            self.arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
            schema = bare(self.arguments.model_json_schema())
        except PydanticUserError as error:
            raise Refused(f"has a tool {name} with a type hint that JSON does not know") from error
        schema.pop("additionalProperties")
        self.schema = {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}

    def read(self, arguments):
        """The arguments in the types of the hints. Raises ValueError with a text for the model."""
        try:
            values = self.arguments.model_validate(arguments)
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
            raise ValueError("; ".join(wrong)) from error
        return {name: getattr(values, field) for field, name in self.names.items() if field in values.model_fields_set}


def documented(text):
    """(what stands before the section of arguments, the text of each argument there), of a docstring in Google's style."""
    head, _, rest = text.partition("\nArgs:")
    arguments, name = {}, None
    for line in rest.splitlines()[1:]:
        if line.strip() and not line.startswith(" "):
            break
        if match := re.match(r" {1,4}(\w+)(?: \([^)]*\))?: *(.*)", line):
            name, text_of_argument = match.groups()
            arguments[name] = text_of_argument.strip()
        elif name and line.strip():
            arguments[name] += f" {line.strip()}"
    return re.split(r"\n(?:Returns|Raises|Yields|Example)s?:", head)[0].strip(), arguments


def bare(schema):
    """A schema of pydantic without the titles that it makes of names."""
    if isinstance(schema, list):
        return [bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: bare(each) for name, each in value.items()} if key in ("properties", "$defs") else bare(value)
        for key, value in schema.items()
        if key != "title"
    }


class EnvironmentObject:
    """Dispatches requests to the user's object. Raises Refused for a class that cannot be one."""

    def __init__(self, make, runner):
        self.thing, self.runner = make(), runner
        methods = dict(inspect.getmembers(type(self.thing), inspect.isfunction))
        if "reset" not in methods:
            raise Refused("has no method reset")
        self.names = [name for name in methods if not name.startswith("_") and name not in NO_TOOLS]
        self.tool = functools.cache(lambda name: Tool(name, methods[name]))
        self.replies, self.reward_name = "reply" in methods, "reward" if "reward" in methods else "get_reward"
        self.rewards = self.reward_name in methods

    def make(self, _):
        """Nothing: the object is there now."""

    def about(self, _):
        tools = [self.tool(name).schema for name in self.names]
        return {"tools": tools, "replies": self.replies, "rewards": self.rewards}

    def reset(self, row):
        taken = inspect.signature(self.thing.reset).parameters.get("row")
        if taken is not None and taken.kind != taken.VAR_KEYWORD:
            return self.run(self.thing.reset, row)
        return self.run(self.thing.reset, **row)

    def calls(self, calls):
        return [self.call(**call) for call in calls]

    def call(self, name, arguments):
        try:
            if name not in self.names:
                raise ValueError(f"there is no tool {name}; there are {', '.join(self.names) or 'none'}")
            said = self.run(getattr(self.thing, name), **self.tool(name).read(arguments))
        except ValueError as error:
            said = {"error": str(error)}
        return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False, default=str)

    def reply(self, message):
        return self.run(self.thing.reply, message)

    def reward(self, messages):
        method = getattr(self.thing, self.reward_name)
        return self.run(method, messages) if "messages" in inspect.signature(method).parameters else self.run(method)

    def run(self, method, *values, **named):
        return finished(self.runner, method(*values, **named))


def finished(runner, said):
    """What a method returned; of an async one, its result."""
    return runner.run(function_child.waited(said)) if inspect.isawaitable(said) else said


def serve(channel, make, path):
    """Answers the requests for one object."""
    environment, stream = None, channel.makefile("rwb")
    with asyncio.Runner() as runner:
        stream.write(json.dumps({"ready": os.getpid()}).encode() + b"\n")
        stream.flush()
        for line in stream:
            request = json.loads(line)
            if "seed" in request:
                begin_random(request.pop("seed"))
            ((what, given),) = request.items()
            try:
                if what == "run":
                    said = finished(runner, make(**given))
                else:
                    environment = environment or EnvironmentObject(make, runner)
                    said = getattr(environment, what)(given)
                reply = json.dumps({"said": said}, default=float)
            except Refused as error:
                reply = json.dumps({"refused": str(error)})
            except BaseException as error:
                reply = json.dumps({"problem": function_child.raised(error, path)})
            stream.write(reply.encode() + b"\n")
            stream.flush()


def begin_random(seed):
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(zlib.crc32(seed.encode()))


def end_with_parent():
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def main(path, name):
    end_with_parent()
    control, nowhere = socket.socket(fileno=os.dup(0)), os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    try:
        make = function_child.load(path, name)
    except Refused as error:
        control.sendall(json.dumps({"refused": str(error)}).encode() + b"\n")
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # processes that ended are not waited for
    control.sendall(b'{"ready": true}\n')
    while True:
        said, channels, *_ = socket.recv_fds(control, 1, 1)
        if not said:
            return
        with socket.socket(fileno=channels[0]) as channel:
            if os.fork() == 0:
                control.close()
                os.setsid()
                end_with_parent()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                try:
                    serve(channel, make, path)
                finally:
                    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
