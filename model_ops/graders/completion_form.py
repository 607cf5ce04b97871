"""Which form of completions a reward function of TRL reads: texts, or lists of messages.

TRL gives texts where a data set's prompts are texts, and lists of messages where they are conversations. A function is written
for one of the two, and its source shows which: completion[0]["content"] or message.get("role") reads messages. The source is
parsed and never run. `completions` and `prompts` are followed through assignments, loops and calls, into the functions of the
file and of files beside it. A function that calls one of TRL's own, or whose annotation says `dict`, gets messages as well; all
others get texts.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

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
                        held |= {each.id for each in ast.walk(target) if isinstance(each, ast.Name) and _is_stored(each)}
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


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _name(node: ast.AST) -> str:
    """The name that an expression ends with."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
