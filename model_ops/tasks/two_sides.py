"""The two processes of a job in the sandbox: tests in one, the answer that they test in the other. Run by sandbox_child.py.

An answer in the tests' own process could change what `==`, `assert` or `math.isclose` do there, or report that it passed.
Here the tests hold stand-ins for the answer's names. A call sends plain values (numbers, texts, lists, tuples, dicts, sets,
bytes, times, types) as JSON and brings plain values back, which the tests compare by themselves. Other objects stay with the
answer: their stand-ins ask for methods, attributes and operators.

The answer must not learn what a test wants before it says what it has. So an operator of the answer's gives plain values for
its own objects only: two stand-ins are compared by the answer, a stand-in never equals a plain value, and what an operator
makes of a stand-in and a plain value (`f(x) - 3`) is a stand-in that no number, truth value or comparison comes from. No
exception of the answer ends a loop of the tests. The answer may call functions that the tests passed to it, and read their
names; it has nothing else of the tests."""

import ast
import builtins
import collections
import contextlib
import datetime
import decimal
import fractions
import io
import json
import operator
import os
import pathlib
import re
import struct
import sys
import traceback
import types

LARGEST_MESSAGE = 64 << 20
COLLECTIONS = {"tuple": tuple, "set": set, "frozenset": frozenset}
TEXTS = {each.__name__: each for each in (decimal.Decimal, fractions.Fraction, datetime.date, datetime.datetime, datetime.time)}
TEXTS |= {each.__name__: each for each in (pathlib.PosixPath, pathlib.PurePosixPath)}
"""Classes that are made again of their text, by name."""
PARTS = {
    "complex": (complex, ("real", "imag")),
    "range": (range, ("start", "stop", "step")),
    "timedelta": (datetime.timedelta, ("days", "seconds", "microseconds")),
}
"""Name -> class that is made again of these attributes, all numbers."""
DICTS = {"OrderedDict": collections.OrderedDict, "Counter": collections.Counter, "dict": dict}
MUTABLE = (list, dict, set, bytearray, collections.deque)
OPERANDS = (str, bytes, bytearray, int, float, complex, list, tuple, decimal.Decimal, fractions.Fraction)
"""Plain values that an operator of the answer may meet; not sets and times, of whose differences a test could ask the size."""
NUMBER = re.compile(r"[\s()+\-.\dejEJ]*|nan|inf")
DESCRIPTIONS = ("__name__", "__qualname__", "__doc__", "__module__")


class Lost(Exception):
    """The other process has ended, or sends what cannot be read."""


class ForeignError(Exception):
    """An exception of the answer whose class has no counterpart here."""


class Standing:
    """Has attributes of an object of the other process."""

    __slots__ = ()

    def __getattr__(self, name):
        return self._of[0].ask("getattr", self, name)

    def __setattr__(self, name, value):
        self._of[0].ask("setattr", self, name, value)


class Remote(Standing):
    """Stand-in for an object of the other process."""

    __slots__ = ("_of",)
    __doc__ = property(lambda self: Standing.__getattr__(self, "__doc__"))

    def __init__(self, side, number):
        object.__setattr__(self, "_of", (side, number))

    def __call__(self, *args, **named):
        return self._of[0].ask("call", self, *args, **named)

    def __instancecheck__(self, value):
        return isinstance(value, Standing) and self._of[0].ask("isinstance", value, self)

    def __subclasscheck__(self, value):
        return isinstance(value, Remote) and self._of[0].ask("issubclass", value, self)

    def __hash__(self):
        return object.__hash__(self) if self._of[0].gives_all else self._of[0].ask("hash", self)

    def __bool__(self):  # the answer may ask whether it was given a function, as in `if key`
        return self._of[0].gives_all or self._of[0].combine("bool", self)

    def __enter__(self):
        return Standing.__getattr__(self, "__enter__")()

    def __exit__(self, kind, *_):
        Standing.__getattr__(self, "__exit__")(kind, None, None)  # its result would hide a failed assertion


WITH_ATTRIBUTES = {kind: type(kind.__name__, (Standing, kind), {}) for kind in (str, int, float, tuple)}
"""Plain class -> its subclass with attributes of an object, for named tuples and the like. Its operators are the plain ones."""


def _asks(name):
    return lambda self, *args: self._of[0].ask(name, self, *args)


def _combines(name, step=1):
    return lambda self, *args: self._of[0].combine(name, *(self, *args)[::step])


def _compares(name):
    return lambda self, other: self._of[0].ask(name, self, other) if isinstance(other, Remote) else NotImplemented


ARITHMETIC = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift"]
for _name in ("len", "iter", "next", "getitem", "setitem", "delitem"):
    setattr(Remote, f"__{_name}__", _asks(_name))
for _name in ("str", "repr", "format", "int", "float", "abs", "round", "neg", *ARITHMETIC):
    setattr(Remote, f"__{_name.strip('_')}__", _combines(_name))
for _name in ARITHMETIC:
    setattr(Remote, f"__r{_name.strip('_')}__", _combines(_name, -1))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Remote, f"__{_name}__", _compares(_name))


class Side:
    """One end. gives_all: whether the other end may ask for anything; if not, it may call the functions that it was given."""

    def __init__(self, place, gives_all):
        self.place, self.gives_all = place, gives_all
        self.objects, self.numbers, self.remotes, self.errors, self.names = [], {}, {}, {}, {}
        self.mixed = set()
        """Numbers of the answer's objects that an operator made of a plain value."""

    def pack(self, value):
        """The value as JSON. Subclasses of plain types become plain, those of the answer with their attributes; mutable ones
        that have methods stay here, under a number, as other objects do."""
        if isinstance(value, Standing):
            return {"yours": value._of[1]}
        if self.gives_all and type(value).__module__ == "answer":
            if isinstance(value, MUTABLE) and any(
                callable(each) for kind in type(value).__mro__ if kind.__module__ == "answer" for each in vars(kind).values()
            ):
                return self.keep(value)
            base = next((kind for kind in WITH_ATTRIBUTES if isinstance(value, kind)), None)
            if base is not None:
                plain = tuple(tuple.__iter__(value)) if base is tuple else getattr(base, f"__{base.__name__}__")(value)
                return {"with": [self.pack(plain), self.keep(value)["object"]]}
        if value is None or isinstance(value, bool):
            return value
        for kind, plain in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
            if isinstance(value, kind):
                return plain(value)
        if isinstance(value, list):
            return [self.pack(each) for each in list.__iter__(value)]
        for name, kind in COLLECTIONS.items():
            if isinstance(value, kind):
                return {name: [self.pack(each) for each in kind.__iter__(value)]}
        if isinstance(value, dict):
            kind = next(name for name, kind in DICTS.items() if isinstance(value, kind))
            return {kind: [[self.pack(key), self.pack(each)] for key, each in dict.items(value)]}
        if isinstance(value, bytes | bytearray):
            return {"bytearray" if isinstance(value, bytearray) else "bytes": bytes(value).hex()}
        name = type(value).__name__
        if name in PARTS and type(value) is PARTS[name][0]:
            return {name: [getattr(value, part) for part in PARTS[name][1]]}
        if type(value) in TEXTS.values():
            return {"text": [name, str(value)]}
        if type(value) is collections.deque:
            return {"deque": [self.pack(list(value)), value.maxlen]}
        if isinstance(value, type) and vars(builtins).get(value.__name__) is value:
            return {"type": value.__name__}
        if not self.gives_all and not callable(value):
            raise TypeError("tests can pass plain values and functions only")
        return self.keep(value)

    def keep(self, value):
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return {"object": self.numbers[id(value)]}

    def unpack(self, data):
        if isinstance(data, list):
            return [self.unpack(each) for each in data]
        if not isinstance(data, dict):
            return data
        [(kind, given)] = data.items()
        if kind in COLLECTIONS:
            return COLLECTIONS[kind](self.unpack(each) for each in given)
        if kind in DICTS:
            return DICTS[kind]({self.unpack(key): self.unpack(each) for key, each in given})
        if kind in ("bytes", "bytearray"):
            return {"bytes": bytes, "bytearray": bytearray}[kind].fromhex(given)
        if kind in PARTS:
            return PARTS[kind][0](*given)
        if kind == "deque":
            return collections.deque(self.unpack(given[0]), given[1])
        if kind == "type" and isinstance(vars(builtins)[given], type):
            return vars(builtins)[given]
        if kind == "text":
            kind_of_text = TEXTS[given[0]]
            return getattr(kind_of_text, "fromisoformat", kind_of_text)(given[1])
        if kind == "object":
            return self.remotes.setdefault(given, Remote(self, given))
        if kind == "with":
            plain = self.unpack(given[0])
            value = WITH_ATTRIBUTES[type(plain)](plain)
            object.__setattr__(value, "_of", (self, given[1]))
            return self.remotes.setdefault(given[1], value)
        return self.objects[given]

    def send(self, message):
        data = json.dumps(message).encode()
        data = memoryview(struct.pack("=Q", len(data)) + data)
        while data:
            data = data[os.write(self.place, data) :]

    def receive(self):
        def read(size):
            parts = []
            while size:
                parts.append(os.read(self.place, min(size, 1 << 20)))
                size -= len(parts[-1])
                if not parts[-1]:
                    raise Lost
            return b"".join(parts)

        [size] = struct.unpack("=Q", read(8))
        if size > LARGEST_MESSAGE:
            raise Lost
        return json.loads(read(size))

    def ask(self, name, *args, **named):
        """What the other end says; it may ask something meanwhile."""
        self.send({"ask": name, "args": [self.pack(each) for each in args], "named": self.pack(named)})
        while "ask" in (reply := self.receive()):
            self.send(self.reply(reply))
        sys.stdout.write(reply.get("printed", ""))
        for place, now in reply.get("changed", ()):
            change(args[place], self.unpack(now))
        if "raised" in reply:
            raise self.error(reply["raised"], reply["text"], name)
        value = self.unpack(reply["value"])
        return returned(value) if reply.get("awaited") else value

    def combine(self, name, *args):
        """What an operator of the answer makes of its own objects. If a plain value was among them, now or before, the answer
        may know what the test wants: then it is a stand-in, or a text that is no number. Raises TypeError for another one."""
        plain = [each for each in args if not isinstance(each, Remote)]
        if name != "format" and not all(isinstance(each, OPERANDS) or callable(each) for each in plain):
            raise TypeError(f"an answer's object and a value of type {type(plain[0]).__name__} have no operator in common")
        value = self.ask(name, *args)
        mixed = bool(plain) or any(each._of[1] in self.mixed for each in args)
        if name in ("str", "repr", "format"):
            mixed = args[0]._of[1] in self.mixed and NUMBER.fullmatch(value)
        if mixed and not isinstance(value, Remote):
            raise TypeError("an operator of the answer gives no plain value for a plain value")
        if mixed:
            self.mixed.add(value._of[1])
        return value

    def error(self, names, text, asked):
        """The exception to raise here. One that ends an iteration does so for `next` only, as in a generator (PEP 479)."""
        for name in names:
            kind = self.errors.get(name) or getattr(builtins, name, None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                if issubclass(kind, StopIteration | StopAsyncIteration) and asked != "next":
                    return RuntimeError(f"the answer raised {kind.__name__}")
                with contextlib.suppress(TypeError):  # some classes want more than a text
                    return kind(text) if text else kind()
        return ForeignError(text)

    def reply(self, asked):
        """The reply to a message of the other end."""
        reply, args = {}, []
        try:
            args, named = [self.unpack(each) for each in asked["args"]], self.unpack(asked["named"])
            value = self.perform(asked["ask"], args, named)
            if type(value) is types.CoroutineType:
                import asyncio

                value, reply["awaited"] = asyncio.run(value), True
            reply["value"] = self.pack(value)
        except BaseException as error:
            reply |= {"raised": [kind.__name__ for kind in type(error).__mro__], "text": str(error)[:10_000]}
        own = [(place, each) for place, each in enumerate(args) if isinstance(each, MUTABLE) and id(each) not in self.numbers]
        now = [(place, self.pack(each)) for place, each in own]
        reply["changed"] = [(place, each) for place, each in now if each != asked["args"][place]]
        if self.gives_all and sys.stdout.tell():
            reply["printed"], sys.stdout = sys.stdout.getvalue(), io.StringIO()
        return reply

    def perform(self, name, args, named):
        if name == "call" and (self.gives_all or id(args[0]) in self.numbers):
            return args[0](*args[1:], **named)
        if not self.gives_all:
            if name == "getattr" and id(args[0]) in self.numbers and args[1] in DESCRIPTIONS:
                return str(getattr(args[0], args[1], ""))
            kind = AttributeError if name == "getattr" else TypeError
            raise kind("an answer can call the functions that tests pass to it, and nothing else of them")
        if name == "names":
            known = {each: self.names[each] for each in args[0] if each in self.names}
            errors = {each: kind for each, kind in known.items() if isinstance(kind, type) and issubclass(kind, Exception)}
            values = {each: value for each, value in known.items() if not isinstance(value, types.ModuleType)}
            return values, {each: [of.__name__ for of in kind.__mro__] for each, kind in errors.items()}
        return (getattr(operator, name, None) or getattr(builtins, name))(*args)


def change(value, now):
    """Makes the caller's own list, dict, set or bytearray what the answer made of it."""
    value.clear()
    (value.extend if isinstance(value, list | bytearray | collections.deque) else value.update)(now)


async def returned(value):
    return value


def read(place):
    with os.fdopen(place, "rb") as pipe:
        return json.load(pipe)


def module_of(name):
    """(a module of that name, its names)."""
    module = sys.modules[name] = types.ModuleType(name)  # dataclasses look it up
    return module.__dict__


def answer(layers, source, place):
    """The answer's process: runs it, then does what the tests ask."""
    if layers is None:
        return
    given = read(source)
    sys.set_int_max_str_digits(0)
    sys.stdin, sys.stdout = open(os.devnull), io.StringIO()  # noqa: SIM115, PTH123 - open until the process ends
    side = Side(place, gives_all=True)
    side.names = module_of("answer")
    exec(compile(given, "answer.py", "exec"), side.names)
    with contextlib.suppress(Lost):
        while True:
            side.send(side.reply(side.receive()))


def test(layers, source, place, reports):
    """The tests' process: a line with the layers of isolation, then what it found."""
    asked = read(source)  # first: no process can join a namespace whose first process has ended
    os.write(reports, json.dumps(layers).encode() + b"\n")
    if layers is None:
        return
    sys.set_int_max_str_digits(0)
    sys.stdin, sys.stdout = open(os.devnull), io.StringIO()  # noqa: SIM115, PTH123 - open until the process ends
    names = module_of("tests")
    try:
        if "function" in asked:
            exec(compile(asked["source"], "grader.py", "exec"), names)
            said = {"value": names[asked["function"]](*asked["args"])}
        else:
            run_tests(asked, Side(place, gives_all=False), names)
            said = {"value": None}
        said = json.dumps(said, default=float)
    except BaseException as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "grader.py"]
        said = json.dumps({"problem": f"raised {type(error).__name__}" + (f" in line {lines[-1]}" if lines else "")})
    data = memoryview(f"{asked['word']}\n{said}".encode())
    while data:
        data = data[os.write(reports, data) :]


def run_tests(asked, side, names):
    """Raises what a failed test raises."""
    exec(compile(asked["prepared"], "prepared.py", "exec"), names)
    entry = asked["entry_point"]
    own = {name for name, value in names.items() if name != entry and getattr(value, "__module__", "") != "tests"}
    own |= {name for name, value in names.items() if name != entry and isinstance(value, types.FunctionType)}
    tests = compile(asked["test"], "tests.py", "exec", ast.PyCF_ONLY_AST)
    wanted = {node.id for node in ast.walk(tests) if isinstance(node, ast.Name)} | {entry}
    wanted -= own | set(dir(builtins)) | {""}
    for name in wanted & sys.stdlib_module_names:
        exec(f"import {name}", names)
    values, errors = side.ask("names", sorted(wanted - sys.stdlib_module_names))
    values = {name: values[name] for name in wanted & values.keys()}  # whatever names the answer sent
    for name in wanted & errors.keys():
        _, *above = errors[name]
        base = next(getattr(builtins, each) for each in above if isinstance(getattr(builtins, each, None), type))
        values[name] = side.errors[name] = type(name, (base if issubclass(base, Exception) else Exception,), {})
    names.update(values)
    exec(compile(tests, "tests.py", "exec"), names)
    if asked["calls_check"]:
        names["check"](names[entry])
