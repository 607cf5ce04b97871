"""The reference of all recipe keys as Markdown, made from the settings models and reference.yaml: `millrace schema --markdown`,
and on the site the second part of docs/recipe.md."""

import json
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from model_ops.parallel import MeshSettings
from model_ops.training import TrainingSettings
from pipelines.contract.fields import RecipeFields
from pipelines.contract.keys import Key, accepted, keys_of, options, section_in, sections_in, tag_of, takes_null
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
    key.pop("title", None)
    if "patternProperties" in key:
        key["additionalProperties"] = False
    if key.get("default", 0) is None:
        del key["default"]  # left out and null are the same


def _null_for_keys_of_the_others(sections: list[dict[str, Any]]) -> None:
    """Accepts null for the keys of the other members of a union, as the recipe does."""
    names = {name for section in sections for name in section["properties"]}
    for section in sections:
        if others := sorted(names - set(section["properties"])):
            section["patternProperties"] = {f"^({'|'.join(others)})$": {"type": "null"}}


TRAINED = tuple(
    name
    for name, field in RecipeFields.model_fields.items()
    if any(issubclass(section, TrainingSettings) for section in sections_in(field.annotation))
)
"""Sections that take the training keys."""
LONGEST_DEFAULT = 60
"""Most characters of a default; a longer one is described, not shown."""
LEFT_OUT = "Left out: "
"""Marks the part of a description that says what applies without the key."""
WIDTH = 128


@dataclass(frozen=True)
class Chapter:
    """One section of the recipe: its key, and the settings below it or below each of its names."""

    key: str
    """Dotted, with * for a chosen name; empty for the top level."""
    settings: type[BaseModel]
    variants: tuple[type[BaseModel], ...] = ()
    """The settings among which a key of the section chooses."""
    text: str = ""
    example: str = ""

    @property
    def title(self) -> str:
        return self.key.replace(".*", "") or "Top level"

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-").replace(".", "")


@cache
def chapters(model: type[BaseModel]) -> tuple[Chapter, ...]:
    """In the order of the keys. Settings that several sections have are explained once, at the first, unless reference.yaml has
    a text or an example of its own for another."""
    texts = _written()["sections"]
    listed = [Chapter("", model, **texts[""])]
    for key in keys_of(model):
        dotted, settings = ".".join(key.path), key.section or key.named_sections
        if settings is None or settings is MeshSettings:
            continue
        if dotted in texts or not any(chapter.settings is settings for chapter in listed):
            listed.append(Chapter(dotted, settings, tuple(sections_in(key.annotation)), **texts.get(dotted, {})))
    return tuple(listed)


@cache
def _written() -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_name("reference.yaml").read_text(encoding="utf-8"))


def reference(model: type[BaseModel]) -> str:
    """The whole reference."""
    switches = [key for key in keys_of(model) if key.name == "enabled" and key.annotation is bool]
    listed = "\n".join(f"- `{'.'.join(key.path[:-1])}`{'' if _is_on(model, key) else ' (off by default)'}" for key in switches)
    links = [f"[{chapter.title}](#{chapter.anchor})" for chapter in chapters(model)]
    parts = [f"## Switches\n\n`enabled: false` switches off:\n\n{listed}\n"]
    parts.append("## Contents\n\n" + _filled(" · ".join([*links, "[Training keys](#training-keys)"])))
    parts += [_chapter(model, chapter) for chapter in chapters(model)]
    return "\n".join([*parts, _training_chapter(model)])


def _filled(prose: str) -> str:
    return textwrap.fill(prose, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def _is_on(model: type[BaseModel], switch: Key) -> bool:
    """Whether a section is on in a recipe that does not name it."""
    section = next(key for key in keys_of(model) if key.path == switch.path[:-1])
    return bool(switch.field.default) and section.field.default is not None


def _chapter(model: type[BaseModel], chapter: Chapter) -> str:
    own = {name: field for name, field in chapter.settings.model_fields.items() if not _is_training_key(chapter, name, field)}
    own = dict(sorted(own.items(), key=lambda item: item[0] in TrainingSettings.model_fields))  # its own keys first
    said = " ".join((chapter.settings.__doc__ or "").split("\n\n")[0].split()) if chapter.key and chapter.variants else ""
    lines = [f"## {chapter.title}\n"]
    if prose := " ".join(text for text in (said, chapter.text) if text):
        lines.append(_filled(prose))
    if chapter.example:
        lines.append(f"```yaml\n{chapter.example}```\n")
    several = len(chapter.variants) > 1
    if several:
        own = {name: field for name, field in own.items() if all(name in each.model_fields for each in chapter.variants)}
    lines.append(_table(model, own, chapter.key))
    if several:
        lines.append(_tables_of_variants(model, chapter, own))
    return "\n".join(lines)


def _tables_of_variants(model: type[BaseModel], chapter: Chapter, shared: dict[str, FieldInfo]) -> str:
    """One table for each group of variants that share keys which not all have."""
    tag = tag_of(model, tuple(chapter.key.split(".")))
    tables: dict[str, list[type[BaseModel]]] = {}
    for variant in chapter.variants:
        own = {
            name: field
            for name, field in variant.model_fields.items()
            if name != tag
            and (name not in shared or field.description != shared[name].description)
            and not _is_training_key(chapter, name, field)
        }
        tables.setdefault(_table(model, own, chapter.key) if own else "", []).append(variant)
    parts = []
    for table, members in tables.items():
        choices = [choice for member in members for choice in get_args(member.model_fields[tag].annotation)]
        names = ", ".join(f"`{tag}: {choice}`" for choice in choices)
        said = " ".join(" ".join((member.__doc__ or "").split()) for member in members)
        keys = "These keys as well:" if table else "No further keys."
        parts.append(_filled(f"{names}: {said} {keys}") + (f"\n{table}" if table else ""))
    return "\n".join(parts)


def _training_chapter(model: type[BaseModel]) -> str:
    settings = _table(model, TrainingSettings.model_fields, "training")
    text = _written()["training"].format(presets=_presets(model), settings=settings)
    mesh = _filled(" ".join((MeshSettings.__doc__ or "").split()))
    example = "```yaml\nsft:\n  mesh: {processes: 8, tp: 2}        # dp_shard takes the rest: 4\n```\n"
    return f"## Training keys\n\n{text}\n### mesh\n\n{mesh}\n{example}\n{_table(model, MeshSettings.model_fields, 'mesh')}"


def _presets(model: type[BaseModel]) -> str:
    rows = ["| section | preset | values |", "|---|---|---|"]
    for stage in TRAINED:
        settings: Any = section_in(model.model_fields[stage].annotation)
        for preset, values in settings.PRESETS.items():
            shown = ", ".join(f"{name} {_default_text(value)}" for name, value in values.items())
            rows.append(f"| `{stage}` | {preset} | {shown} |")
    return "\n".join(rows)


def _is_training_key(chapter: Chapter, name: str, field: FieldInfo) -> bool:
    """Whether the table of training keys describes a stage's key completely."""
    shared = TrainingSettings.model_fields.get(name)
    return chapter.key in TRAINED and shared is not None and shared.description == field.description


def _table(model: type[BaseModel], fields: dict[str, FieldInfo], section: str) -> str:
    rows = ["| key | accepts | default | what it does |", "|---|---|---|---|"]
    for name, field in fields.items():
        anchor = _anchor_of(model, f"{section}.{name}" if section else name, field)
        shown = f"[`{name}`](#{anchor})" if anchor else f"`{name}`"
        said, _, left_out = (field.description or "").partition(LEFT_OUT)
        rows.append(
            f"| {shown} | {_accepts(field, left_out)} | {_default(field, left_out)} | {_cell(said.strip().removesuffix('.'))} |"
        )
    return "\n".join(rows) + "\n"


def _anchor_of(model: type[BaseModel], dotted: str, field: FieldInfo) -> str | None:
    """Anchor of the chapter on a key's own keys: its own, else of the first section with the same settings."""
    key = Key(tuple(dotted.split(".")), field, model)
    settings = key.section or key.named_sections
    if settings is None or settings is MeshSettings:
        return "mesh" if settings else None
    alike = [chapter for chapter in chapters(model) if chapter.settings is settings]
    own = next((chapter for chapter in alike if chapter.key == dotted), None)
    return (own or alike[0]).anchor if alike else None


def _accepts(field: FieldInfo, left_out: str) -> str:
    section = section_in(field.annotation)
    literals = [kind for kind in options(field.annotation) if get_origin(kind) is Literal]
    choices = [f"`{_default_text(choice)}`" for kind in literals for choice in get_args(kind)]
    lists = [accepted(kind).removeprefix("a ") for kind in options(field.annotation) if get_origin(kind) is list]
    words = "section" if section else ", ".join(choices) or accepted(field.annotation, field.metadata).removeprefix("a ")
    words = " or ".join([*lists, words]) if choices and lists else words
    return _cell(words + (" or null" if takes_null(field.annotation) and not left_out else ""))


def _default(field: FieldInfo, left_out: str) -> str:
    if field.is_required():
        return "**needed**"
    if left_out:
        return _cell(left_out)
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel):
        return ""
    text = _default_text(value)
    return f"`{_cell(text)}`" if len(text) <= LONGEST_DEFAULT else "built in"


def _default_text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_default_text(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_default_text(inner) for inner in value) + "]"
    if isinstance(value, int):
        return str(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
