"""Table of kinds of tasks: name -> item. A new kind is a file here, and a place in AnyItem and SCORERS.

Kinds without a scorer are scored elsewhere: unit_tests in a subprocess (unit_tests.py), judge by a server (model_ops/graders),
record by an environment.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field, TypeAdapter, ValidationError

from model_ops.jobs import ModelError
from model_ops.tasks.function_call import FunctionCallItem, score_call
from model_ops.tasks.instructions import InstructionsItem, score_instructions
from model_ops.tasks.item import JudgedItem, RecordItem
from model_ops.tasks.json_answer import JsonItem, score_json
from model_ops.tasks.text_match import (
    CompliesItem,
    ExactItem,
    NumberItem,
    RefusesItem,
    RegexItem,
    score_exact,
    score_number,
    score_refusal,
    score_regex,
)
from model_ops.tasks.unit_tests import UnitTestsItem

AnyItem = (
    NumberItem
    | FunctionCallItem
    | JsonItem
    | ExactItem
    | RegexItem
    | InstructionsItem
    | RefusesItem
    | CompliesItem
    | UnitTestsItem
    | JudgedItem
    | RecordItem
)

ITEMS: dict[str, type[AnyItem]] = {item.model_fields["kind"].default: item for item in get_args(AnyItem)}
"""Kind -> its item."""

SCORERS: dict[str, Callable[[Any, str], float]] = {
    "number": score_number,
    "function_call": score_call,
    "json_schema": score_json,
    "exact": score_exact,
    "regex": score_regex,
    "ifeval": score_instructions,
    "refuses": score_refusal,
    "complies": score_refusal,
}
"""Kind -> (item, answer) -> score from 0 to 1."""

_ADAPTER: TypeAdapter[AnyItem] = TypeAdapter(Annotated[AnyItem, Field(discriminator="kind")])


def read_items(path: Path) -> list[AnyItem]:
    """The items of a tasks.jsonl. Raises ModelError for a line that is no item; the message names the line."""
    items = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read: materialize eval_suite again") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                items.append(_ADAPTER.validate_json(line))
            except ValidationError as error:
                field = ".".join(map(str, error.errors()[0]["loc"])) or "the line"
                raise ModelError(
                    f"{path} line {number}: {field} does not fit an evaluation item; materialize eval_suite again"
                ) from error
    return items
