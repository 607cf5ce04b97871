"""Task `json_schema`: the answer is one JSON value that a JSON schema accepts.

The dialect is the schema's own `$schema`, else 2020-12. References to other documents are not fetched: they accept nothing.
jsonschema is imported where a schema is checked: every command that reads a recipe imports this file.
"""

import json
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import field_validator

from model_ops.tasks.code_fences import json_values
from model_ops.tasks.item import Item
from model_ops.tasks.text_match import matches


class JsonItem(Item):
    """A question that is answered by JSON."""

    kind: Literal["json_schema"] = "json_schema"
    json_schema: dict[str, Any] | bool
    """The schema that the answer must satisfy."""

    @field_validator("json_schema")
    @classmethod
    def _is_a_schema(cls, value: dict[str, Any] | bool) -> dict[str, Any] | bool:
        from jsonschema import exceptions, validators

        try:
            validators.validator_for(value, validators.Draft202012Validator).check_schema(value)
        except exceptions.SchemaError as error:
            raise ValueError(f"the schema is no JSON schema: {error.message}") from error
        return value


def score_json(item: JsonItem, text: str) -> float:
    """1.0 if the text is JSON that the schema accepts, else 0.0."""
    from jsonschema import exceptions, validators
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    kind = validators.extend(validators.validator_for(item.json_schema, validators.Draft202012Validator), {"pattern": _pattern})
    try:
        values = json_values(text, json.JSONDecoder(parse_constant=_no_json))
        return float(bool(values) and kind(item.json_schema, registry=Registry()).is_valid(values[-1]))
    except (ValueError, OverflowError, RecursionError, Unresolvable, exceptions.ValidationError):
        return 0.0
    except exceptions._WrappedReferencingError:
        return 0.0


def _no_json(constant: str) -> None:
    """NaN and Infinity, which Python reads."""
    raise ValueError(f"{constant} is no JSON")


def _pattern(_validator: object, pattern: str, instance: object, _schema: object) -> Iterator[Exception]:
    """The keyword `pattern`, whose search takes a bounded time."""
    from jsonschema import exceptions

    if isinstance(instance, str) and not matches(pattern, instance):
        yield exceptions.ValidationError("the text does not match the pattern")
