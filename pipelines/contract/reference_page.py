"""The reference of all recipe keys, generated from the settings models: docs/recipe.md.

millrace schema --markdown > docs/recipe.md
"""

from __future__ import annotations

import textwrap
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from model_ops.parallel import MeshSettings
from model_ops.training import TrainingSettings
from pipelines.contract.fields import RecipeFields
from pipelines.contract.keys import (
    ANY_NAME,
    Key,
    accepted,
    keys_of,
    kind_at,
    options,
    section_in,
    sections_in,
    tag_of,
    takes_null,
)
from pipelines.contract.sections import CHANGED, INTRODUCTION, SECTIONS, TRAINING, Chapter

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
FEW = 5
"""As many further keys are not folded."""


def reference(model: type[BaseModel]) -> str:
    """The whole page as Markdown."""
    switches = "\n".join(
        f"- `{'.'.join(key.path[:-1])}`{'' if _is_on(model, key) else ' (off by default)'}"
        for key in keys_of(model)
        if key.name == "enabled" and key.annotation is bool
    )
    parts = ["# The recipe\n", INTRODUCTION.format(switches=switches), _contents()]
    for section in SECTIONS:
        parts.append(_chapter(model, section))
        if section.key == "tiny":
            parts.append(_training_chapter(model))
    return "\n".join(parts)


def _contents() -> str:
    links = []
    for section in SECTIONS:
        links.append(f"[{section.title}](#{_anchor(section.title)})")
        if section.key == "tiny":
            links.append("[Training keys](#training-keys)")
    return "## Contents\n\n" + _filled(" · ".join(links))


def _filled(prose: str) -> str:
    return textwrap.fill(prose, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def _is_on(model: type[BaseModel], switch: Key) -> bool:
    """Whether a section is on in a recipe that does not name it."""
    section = kind_at(model, switch.path[:-1])
    return bool(switch.field.default) and (section is None or section.field is None or section.field.default is not None)


def _anchor(title: str) -> str:
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")


def _chapter(model: type[BaseModel], section: Chapter) -> str:
    settings = _settings_at(model, section)
    own = {name: field for name, field in settings.model_fields.items() if not _is_training_key(section, name, field)}
    own = dict(sorted(own.items(), key=lambda item: item[0] in TrainingSettings.model_fields))  # its own keys first
    under_names = kind_at(model, (*_place(section), ANY_NAME)) is not None
    said = " ".join((settings.__doc__ or "").split("\n\n")[0].split()) if section.key and not under_names else ""
    prose = " ".join(text for text in (said, section.text) if text)
    lines = [f"## {section.title}\n"]
    if prose:
        lines.append(_filled(prose))
    if section.example:
        lines.append(f"```yaml\n{section.example}```\n")
    kind = kind_at(model, _place(section))
    variants = sections_in(kind.annotation) if kind else []
    if len(variants) > 1:
        own = {name: field for name, field in own.items() if all(name in variant.model_fields for variant in variants)}
    lines.append(_table(own, section.key))
    if len(variants) > 1:
        lines.append(_tables_of_variants(model, section, own, variants))
    return "\n".join(lines)


def _tables_of_variants(
    model: type[BaseModel], section: Chapter, shared: dict[str, FieldInfo], variants: list[type[BaseModel]]
) -> str:
    """Tables of the keys that not all variants of a section share: one table for each group of variants with the same keys."""
    tag = tag_of(model, _place(section))
    tables: dict[str, list[type[BaseModel]]] = {}
    for variant in variants:
        own = {
            name: field
            for name, field in variant.model_fields.items()
            if name != tag
            and (name not in shared or field.description != shared[name].description)
            and not _is_training_key(section, name, field)
        }
        tables.setdefault(_table(own, section.key) if own else "", []).append(variant)
    parts = []
    for table, members in tables.items():
        choices = [choice for member in members for choice in get_args(member.model_fields[tag].annotation)]
        names = ", ".join(f"`{tag}: {choice}`" for choice in choices)
        said = " ".join(" ".join((member.__doc__ or "").split()) for member in members)
        keys = "These keys as well:" if table else "No further keys."
        parts.append(_filled(f"{names}: {said} {keys}") + (f"\n{table}" if table else ""))
    return "\n".join(parts)


def _training_chapter(model: type[BaseModel]) -> str:
    text = TRAINING.format(presets=_presets(model), settings=_table(TrainingSettings.model_fields, "training"))
    mesh = _filled(" ".join((MeshSettings.__doc__ or "").split()))
    example = "```yaml\nsft:\n  mesh: {processes: 8, tp: 2}        # dp_shard takes the rest: 4\n```\n"
    return f"## Training keys\n\n{text}\n### mesh\n\n{mesh}\n{example}\n{_table(MeshSettings.model_fields, 'mesh')}"


def _presets(model: type[BaseModel]) -> str:
    rows = ["| section | preset | values |", "|---|---|---|"]
    for stage in TRAINED:
        settings: Any = section_in(model.model_fields[stage].annotation)
        for preset, values in settings.PRESETS.items():
            shown = ", ".join(f"{name} {_default_text(value)}" for name, value in values.items())
            rows.append(f"| `{stage}` | {preset} | {shown} |")
    return "\n".join(rows)


def _is_training_key(section: Chapter, name: str, field: FieldInfo) -> bool:
    """Whether the table of training keys describes a stage's key completely."""
    shared = TrainingSettings.model_fields.get(name)
    return section.key in TRAINED and shared is not None and shared.description == field.description


def _table(fields: dict[str, FieldInfo], section: str) -> str:
    """The keys that are needed or that people change, and the others folded away, as GitHub and the site's Markdown show it."""
    changed = set(CHANGED.split())
    shown = {
        name: field
        for name, field in fields.items()
        if field.is_required()
        or name in ("enabled", "architecture")
        or section in changed
        or (place := f"{section}.{name}".strip(".")) in changed
        or _chapter_of(place)
    }
    folded = {name: field for name, field in fields.items() if name not in shown}
    if not folded or len(folded) <= FEW:
        return _rows(fields, section)
    summary = f"{len(folded)} more keys" if shown else f"{len(folded)} keys"
    more = f'<details markdown="1">\n<summary>{summary}</summary>\n\n{_rows(folded, section)}\n</details>\n'
    return (_rows(shown, section) + "\n" if shown else "") + more


def _rows(fields: dict[str, FieldInfo], section: str) -> str:
    rows = ["| key | accepts | default | what it does |", "|---|---|---|---|"]
    for name, field in fields.items():
        chapter = _chapter_of(f"{section}.{name}" if section else name)
        shown = f"[`{name}`](#{chapter})" if chapter else f"`{name}`"
        said, left_out = _parted(field.description or "")
        rows.append(f"| {shown} | {_accepts(field, left_out)} | {_default(field, left_out)} | {_cell(said)} |")
    return "\n".join(rows) + "\n"


def _chapter_of(dotted: str) -> str | None:
    """Anchor of the chapter that explains a key's own keys."""
    if dotted.rpartition(".")[2] == "mesh":
        return "mesh"
    for section in SECTIONS:
        if dotted == section.title or section.title.startswith(dotted + "."):
            return _anchor(section.title)
    return None


def _parted(description: str) -> tuple[str, str]:
    """What a key does, and what applies without it."""
    said, _, left_out = description.partition(LEFT_OUT)
    return said.strip().removesuffix("."), left_out


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


def _place(section: Chapter) -> tuple[str, ...]:
    return tuple(section.key.split(".")) if section.key else ()


def _settings_at(model: type[BaseModel], section: Chapter) -> type[BaseModel]:
    """The settings that a chapter explains; for chosen names, the settings below each name."""
    place = _place(section)
    kind = kind_at(model, place)
    assert kind is not None, section
    below = section_in(kind.annotation) or section_in(kind_at(model, (*place, ANY_NAME)).annotation)
    assert below is not None, section
    return below
