"""The text of a recipe: YAML with the line of every key. Plain values are read as YAML 1.2: `1e-3` is a number, `no`, `on` and
`1:30` are text, a date stays text until a key asks for one. Anchors, aliases and merge keys (`<<`) work; so does JSON."""

import difflib
import json
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path, PurePath
from typing import Any

import yaml

from model_ops.jobs import Misuse


@dataclass(frozen=True)
class RecipeProblem:
    """One thing to change in a recipe."""

    sentence: str
    """What is wrong and what is expected, without line and key."""
    key: str = ""
    """The dotted key, such as `sft.lora.rank`; empty for the file as a whole."""
    line: int | None = None
    """Line of the recipe's file, from 1; None if the problem has no line (a missing key)."""

    def __str__(self) -> str:
        return f"{self.key}: {self.sentence}" if self.key else self.sentence


class RecipeProblemsError(Misuse):
    """The recipe cannot be used. `problems` has all of them, in the order of the file; the message has one line for each."""

    def __init__(self, origin: Path | str, problems: Iterable[RecipeProblem]):
        self.origin = origin
        self.problems = sorted(dict.fromkeys(problems), key=lambda problem: (problem.line is None, problem.line or 0))
        super().__init__("\n".join(self._placed(problem) for problem in self.problems))

    def _placed(self, problem: RecipeProblem) -> str:
        place = f"{self.origin}" if problem.line is None else f"{self.origin} line {problem.line}"
        return f"{place}: {problem}"


LARGEST_FILE = 1 << 20
"""Most bytes of a recipe; a recipe has a few thousand."""
MOST_VALUES = 20_000
"""Most values of a recipe, with aliases expanded."""
DEEPEST = 64
NEEDED = "a recipe is a mapping with workload, base_model and sources"

Place = tuple[str | int, ...]
"""Keys and list indices from the top to a value."""

_TAG = "tag:yaml.org,2002:"


@dataclass
class RecipeText:
    """The parsed text of a recipe."""

    content: Any
    lines: dict[Place, int | None] = field(default_factory=dict)
    """Line of each key and list item, from 1; None for a recipe that was not text."""
    problems: list[RecipeProblem] = field(default_factory=list)

    def line_of(self, place: Place) -> int | None:
        """Line of a key, or of the nearest key above it if the key is not in the file."""
        for length in range(len(place), 0, -1):
            if place[:length] in self.lines:
                return self.lines[place[:length]]
        return None


def read_text(path: Path) -> RecipeText:
    """Reads a recipe's file. Raises RecipeError if it is not a file, not text or not a YAML mapping."""
    text = _decoded(path, _bytes_of(path))
    if path.suffix == ".json":
        text = text.replace("\t", " ")  # JSON uses tabs only as white space, never inside strings
    return parse_text(text, path)


def parse_values(values: Mapping[str, Any], origin: Path | str) -> RecipeText:
    """A recipe given as values: no key has a line. Raises RecipeError for values that a recipe cannot have."""
    try:
        text = json.dumps(values, default=_as_written)
    except (TypeError, ValueError, RecursionError) as error:
        raise RecipeProblemsError(origin, [RecipeProblem(f"holds a value that no recipe can hold: {error}")]) from error
    parsed = parse_text(text, origin)
    parsed.lines = dict.fromkeys(parsed.lines)
    parsed.problems = [replace(problem, line=None) for problem in parsed.problems]
    return parsed


def _as_written(value: Any) -> str:
    if isinstance(value, date | PurePath):
        return str(value)
    raise TypeError(f"an object of type {type(value).__name__}")


def parse_text(text: str, origin: Path | str) -> RecipeText:
    """Reads a recipe's text. origin: its name in messages. Raises RecipeError if it is not a YAML mapping."""
    if len(text) > LARGEST_FILE:
        said = f"holds no recipe: it has {len(text) / 1e6:,.1f} MB, and a recipe has a few kB"
        raise RecipeProblemsError(origin, [RecipeProblem(said)])
    try:
        loader = _Loader(text)
        documents = []
        while loader.check_node():
            documents.append(loader.get_node())
    except yaml.MarkedYAMLError as error:
        raise RecipeProblemsError(origin, [_syntax_problem(error)]) from error
    except (yaml.reader.ReaderError, UnicodeError) as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        sentence = "cannot be read as text: it holds a control character; is this a recipe?"
        raise RecipeProblemsError(origin, [RecipeProblem(sentence, line=line)]) from error
    except RecursionError as error:
        raise RecipeProblemsError(origin, [RecipeProblem("holds no recipe: its brackets are nested too deeply")]) from error
    held = [node for node in documents if not (isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null")]
    if not held:
        raise RecipeProblemsError(origin, [RecipeProblem(f"holds no recipe: it is empty, and {NEEDED}")])
    if len(held) > 1:
        said = "a second document begins here; a recipe is one document, so remove the `---` above"
        second = RecipeProblem(said, line=held[1].start_mark.line + 1)
        raise RecipeProblemsError(origin, [second])
    if not isinstance(held[0], yaml.MappingNode):
        what = "a list" if isinstance(held[0], yaml.SequenceNode) else "a single value"
        raise RecipeProblemsError(origin, [RecipeProblem(f"holds no recipe: it holds {what}, and {NEEDED}")])
    reading = _Reading(RecipeText({}))
    try:
        reading.text.content = reading.value(held[0], ())
    except (_TooMuchError, RecursionError) as error:
        sentence = f"holds no recipe: with aliases written out it has more than {MOST_VALUES:,} values or {DEEPEST} levels"
        raise RecipeProblemsError(origin, [RecipeProblem(sentence)]) from error
    return reading.text


def _bytes_of(path: Path) -> bytes:
    try:
        kind = path.stat()
        if stat.S_ISDIR(kind.st_mode):
            raise RecipeProblemsError(path, [RecipeProblem("is a directory; give the recipe's YAML file" + _recipes_in(path))])
        if not stat.S_ISREG(kind.st_mode):
            raise RecipeProblemsError(path, [RecipeProblem("is no regular file; give the recipe's YAML file")])
        if kind.st_size > LARGEST_FILE:
            sentence = f"holds no recipe: it has {kind.st_size / 1e6:,.1f} MB, and a recipe has a few kB"
            raise RecipeProblemsError(path, [RecipeProblem(sentence)])
        return path.read_bytes()
    except FileNotFoundError as error:
        near = difflib.get_close_matches(path.name, [str(name) for name in _yaml_names(path.parent)], n=1)
        meant = f"; did you mean {path.parent / near[0]}?" if near else ""
        raise RecipeProblemsError(path, [RecipeProblem(f"there is no recipe at this path{meant}")]) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name is no path"
        raise RecipeProblemsError(path, [RecipeProblem(f"cannot be read as text: {reason}")]) from error


def _yaml_names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.glob("*.y*ml"))
    except OSError:
        return []


def _recipes_in(folder: Path) -> str:
    names = _yaml_names(folder)
    return f", such as {folder / names[0]}" if names else ""


def _decoded(path: Path, content: bytes) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise RecipeProblemsError(path, [RecipeProblem("cannot be read as text: it is UTF-16; save it as UTF-8")])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        said = "cannot be read as text: this is no UTF-8; save it as UTF-8"
        raise RecipeProblemsError(path, [RecipeProblem(said, line=line)]) from error


class _Loader(yaml.SafeLoader):
    """Composes YAML nodes. Plain values are read as in YAML 1.2, with `_` allowed in numbers."""

    yaml_implicit_resolvers: dict[str | None, Any] = {}  # noqa: RUF012 - PyYAML's own name and kind


for _name, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?(?:0x[0-9a-fA-F_]+|0o[0-7_]+|[0-9][0-9_]*)$", "-+0123456789"),
    (
        "float",
        r"^(?:[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)"
        r"|\.(?:nan|NaN|NAN))$",
        "-+.0123456789",
    ),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("merge", r"^<<$", "<"),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(_pattern), list(_first))


class _TooMuchError(Exception):
    """The file describes more values than a recipe can have."""


class _Reading:
    def __init__(self, text: RecipeText):
        self.text = text
        self.values = 0

    def value(self, node: yaml.Node, place: Place) -> Any:
        """The value of a node. Raises _TooMuchError if expanded aliases exceed the limits."""
        self.values += 1
        if self.values > MOST_VALUES or len(place) > DEEPEST:
            raise _TooMuchError
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)
        if not node.tag.startswith(_TAG) or node.tag.removeprefix(_TAG) not in ("map", "seq"):
            self._problem(node, place, _unknown_tag(node))
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.text.lines[(*place, index)] = item.start_mark.line + 1
            return [self.value(item, (*place, index)) for index, item in enumerate(node.value)]
        return self._mapping(node, place)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                merged = {**self._merged(value_node, place), **merged}
        for key_node, value_node in node.value:
            key = self._key(key_node, place)
            if key is None:
                continue
            if key in own:
                first = self.text.lines[(*place, key)]
                self._problem(key_node, (*place, key), f"is given twice, first in line {first}; keep one of them")
                continue
            self.text.lines[(*place, key)] = key_node.start_mark.line + 1
            own[key] = self.value(value_node, (*place, key))
        return {**merged, **own}

    def _merged(self, node: yaml.Node, place: Place) -> dict[str, Any]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        values: dict[str, Any] = {}
        for source in reversed(sources):
            if isinstance(source, yaml.MappingNode):
                values |= self.value(source, place)
            else:
                self._problem(source, place, "`<<` takes an alias of a mapping, such as `<<: *training`")
        return values

    def _key(self, node: yaml.Node, place: Place) -> str | None:
        if node.tag == _TAG + "merge":
            return None
        if not isinstance(node, yaml.ScalarNode):
            self._problem(node, place, "a key is a word, not a list or a mapping; put quotes around it")
            return None
        if node.value == "":
            self._problem(node, place, "a key is missing before the colon")
            return None
        if not node.tag.startswith(_TAG):
            self._problem(node, place, _unknown_tag(node))
        return node.value

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> Any:
        kind, text = node.tag.removeprefix(_TAG), node.value
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return int(text.replace("_", ""), 0 if re.match(r"[-+]?0[xo]", text) else 10)
            if kind == "float":
                return float(re.sub(r"^([-+]?)\.(?=inf|nan)", r"\1", text.replace("_", "").lower()))
        except (ValueError, KeyError):
            what = "the number has too many digits" if len(text) > 1000 else f"this is no value of the kind !!{kind}"
            self._problem(node, place, what)
            return text
        if kind not in ("str", "timestamp", "merge"):
            self._problem(node, place, _unknown_tag(node))
        return self._whole_text(node, place)

    def _whole_text(self, node: yaml.ScalarNode, place: Place) -> str:
        try:  # JSON writes a character beyond U+FFFF as two escapes
            text = node.value.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self._problem(node, place, "the text holds a lone surrogate, an escape between \\ud800 and \\udfff alone")
            return node.value.encode("utf-8", "replace").decode()
        if "\0" in text:
            self._problem(node, place, "the text holds the character \\0; remove it")
        return text

    def _problem(self, node: yaml.Node, place: Place, sentence: str) -> None:
        self.text.problems.append(RecipeProblem(sentence, dotted(place), node.start_mark.line + 1))


def dotted(place: Place) -> str:
    """A place as a dotted key for messages; parts that may contain a secret are not shown."""
    return ".".join(_shown_part(part) for part in place)


def _shown_part(part: str | int) -> str:
    text = str(part)
    if "://" in text or "@" in text:
        return "(a key with an address)"
    text = " ".join(text.split())
    text = text if len(text) <= 60 else text[:57] + "..."
    return text if re.fullmatch(r"[\w.*-]+", text) else f"'{text}'"


def _unknown_tag(node: yaml.Node) -> str:
    tag = node.tag.replace(_TAG, "!!")
    tag = tag if len(tag) <= 40 else tag[:37] + "..."
    return f"the tag {tag} means nothing in a recipe; write the value itself"


def _syntax_problem(error: yaml.MarkedYAMLError) -> RecipeProblem:
    """PyYAML's error as a sentence. The text of the line is not shown, because it may contain a secret."""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    said, context = error.problem or "", error.context or ""
    opened = f" of line {error.context_mark.line + 1}" if error.context_mark else ""
    if "'\\t'" in said:
        what = "a tab is not allowed here; use spaces"
    elif "scanning an alias" in context or "scanning an anchor" in context or "undefined alias" in said:
        what = "a value that begins with * or & needs quotes, unless it names an anchor of this file"
    elif match := re.search(r"found character '(.)' that cannot start any token", said):
        what = f"a value that begins with {match.group(1)} needs quotes"
    elif "mapping values are not allowed" in said:
        what = (
            "there is a colon where no key can be: put a value that holds a colon in quotes, indent a key like its "
            "neighbours, and check whether the line above lacks its colon"
        )
    elif "could not find expected ':'" in said:
        what, line = "this line has no colon and space after its key; write `key: value`", (error.context_mark or mark).line + 1
    elif "expected ',' or" in said or "expected the node content" in said:
        what = f"the bracket{opened} is not closed, or a comma is missing before this place"
    elif "quoted scalar" in context and "end of stream" in said:
        what, line = "the quote that opens in this line is never closed", error.context_mark.line + 1
    elif "unknown escape" in said or "escape sequence" in said:
        what = "a backslash in double quotes begins an escape; use single quotes"
    elif "expected <block end>" in said and "':'" in said:
        what = "a key is missing before the colon"
    elif "expected <block end>" in said or "block collection" in context:
        what = "this line is not indented like its neighbours"
    elif "<document start>" in said:
        what = "what stands above this line is no key; put # before a comment"
    elif "block scalar" in context:
        what = "a value that begins with | or > needs quotes, unless its text begins in the next line"
    elif "not allowed here" in said:
        what = "a list item or a key begins here; write it in a line of its own"
    elif "anchor" in context:
        what = "an anchor of this name exists already; give each its own name"
    elif "tag" in context or "tag" in said:
        what = "a value that begins with ! needs quotes"
    else:
        what = "the text cannot be read from here on; look at indentation, quotes and brackets"
    return RecipeProblem(f"not valid YAML: {what}", line=line)
