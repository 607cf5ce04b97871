"""The recipe's JSON Schema (draft 2020-12) for editors. `load_recipe` checks what it cannot express, such as the order of
days.
"""

import json
from typing import Any

from pydantic import BaseModel

from resources.composing import SeedSettings
from resources.records import FORMATS
from resources.sources import SourceSettings

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a settings model; every key has its description, default and bounds."""
    schema = model.model_json_schema()
    sections = schema.pop("$defs")
    for section in [schema, *sections.values()]:
        section.pop("title", None)
        section["description"] = " ".join(section.get("description", "").split())
        for key in section.get("properties", {}).values():
            _tidy(key)
    for key in schema["properties"].values():
        _null_for_keys_of_the_others([sections[choice["$ref"].rpartition("/")[2]] for choice in key.get("oneOf", [])])
    for kind in (SourceSettings, SeedSettings):
        sections[kind.__name__]["properties"]["format"]["enum"] = ["auto", *FORMATS]
    named = {"$schema": DIALECT, "title": "millrace recipe"}
    return {**named, **schema, "$defs": sections}


def as_text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _tidy(key: dict[str, Any]) -> None:
    """Removes what readers do not need, and closes mappings whose names follow a pattern."""
    key.pop("title", None)
    if "patternProperties" in key:
        key["additionalProperties"] = False
    if key.get("default", 0) is None:
        del key["default"]  # left out and null are the same


def _null_for_keys_of_the_others(sections: list[dict[str, Any]]) -> None:
    """Accepts null for the keys of the other members of a union, as the recipe does; editors do not propose them."""
    names = {name for section in sections for name in section["properties"]}
    for section in sections:
        if others := sorted(names - set(section["properties"])):
            section["patternProperties"] = {f"^({'|'.join(others)})$": {"type": "null"}}
