"""Keys of a recipe as the schema has them: what each accepts, in words, and which key an unknown one means."""

import difflib
import types
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

from resources.stages import trained_sections

ANY_NAME = "*"
"""In a path, replaces a name that the recipe's author chooses, such as a source's."""

OTHER_WORDS = {
    "lr": "learning_rate", "epoch": "epochs", "num_epochs": "epochs", "num_train_epochs": "epochs", "max_steps": "steps",
    "max_seq_length": "max_length", "max_seq_len": "max_length", "seq_len": "max_length", "context_length": "max_length",
    "batch_size": "tokens_per_step", "micro_batch_size": "micro_batch_tokens", "warmup": "warmup_share",
    "warmup_ratio": "warmup_share", "warmup_steps": "warmup_share", "lr_scheduler": "schedule",
    "lr_scheduler_type": "schedule", "optim": "optimizer", "max_grad_norm": "gradient_clip", "grad_clip": "gradient_clip",
    "dtype": "precision", "gradient_checkpointing": "activation_checkpointing", "r": "rank", "lora_r": "rank",
    "lora_rank": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout", "target_modules": "targets", "name": "workload",
    "model": "base_model", "base": "base_model", "logs": "sources", "data": "sources", "source": "sources",
    "draft": "speculator", "drafter": "speculator", "distill": "student", "distillation": "student",
    "quantization": "quantize", "quantise": "quantize", "eval": "evaluation", "dataset": "datasets",
    "num_draft_tokens": "num_speculative_tokens", "draft_tokens": "num_speculative_tokens", "api_key": "api_key_env",
    "url": "base_url", "path": "uri", "disabled": "enabled", "enable": "enabled", "dedup": "near_duplicates",
    "start": "first_day", "start_date": "first_day", "end": "last_day", "end_date": "last_day",
    "val_share": "validation_share", "num_threads": "threads", "type": "architecture",
    "arch": "architecture",
}  # fmt: skip
"""Name of a key in other tools -> its name here."""

INSTEAD = {
    "drift.embeddings": "the test novelty compares word n-grams, without a model",
    "student.across_tokenizers": "a student with another tokenizer learns answers, by student.label_weight: 1",
    "preference.length_share": "a loss that counts by token, preference.loss: simpo",
    "student.hidden_weight": "a student learns its teacher's distributions alone, without hidden states",
    **dict.fromkeys(
        ("quantize.distil.method", "quantize.distil.lora"), "every weight of the matrices is trained before they are rounded"
    ),
    "evaluation.student_drafts": "a student drafts by speculator.architecture: draft_model and speculator.draft_model: student",
    **{f"{section}.early_end": "a training ends with its steps or epochs" for section in trained_sections()},
}
"""Key that existed once -> what to write instead."""

_FOUR_BITS = "write w4a16 or fp8, or run llm-compressor on the released directory"
VALUE_INSTEAD = {
    **{("quantize.scheme", scheme): _FOUR_BITS for scheme in ("mxfp4", "mxfp4a16", "nvfp4", "nvfp4a16")},
    ("rft.correction", "sequence"): "write icepop, which masks tokens",
    ("automation.decide.causes", "base_revision"): "leave it out; a run imports a base directory whose files changed",
}
"""(key, value that it once had) -> what to write instead."""


@dataclass(frozen=True)
class Words:
    """Metadata of a text field: a description of what it accepts."""

    words: str


@dataclass(frozen=True)
class Key:
    """One key of a recipe."""

    path: tuple[str, ...]
    field: FieldInfo
    owner: type[BaseModel]

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def dotted(self) -> str:
        return ".".join("<name>" if part == ANY_NAME else part for part in self.path)

    @property
    def annotation(self) -> Any:
        return self.field.annotation

    @property
    def section(self) -> type[BaseModel] | None:
        """The settings below the key; None if it has a plain value."""
        return section_in(self.annotation)

    @property
    def named_sections(self) -> type[BaseModel] | None:
        """The settings below each name, for a key whose names the author chooses."""
        annotation = options(self.annotation)[0]
        return section_in(get_args(annotation)[1]) if get_origin(annotation) is dict else None


def keys_of(model: type[BaseModel], path: tuple[str, ...] = ()) -> list[Key]:
    """Every key of a model; a section comes before its keys."""
    return list(_keys_of(model, path))


@cache
def _keys_of(model: type[BaseModel], path: tuple[str, ...]) -> tuple[Key, ...]:
    keys: list[Key] = []
    for name, field in model.model_fields.items():
        key = Key((*path, name), field, model)
        keys.append(key)
        if key.section:
            keys.extend(_keys_of(key.section, key.path))
        elif key.named_sections:
            keys.extend(_keys_of(key.named_sections, (*key.path, ANY_NAME)))
    return tuple(keys)


@dataclass(frozen=True)
class Kind:
    """The type that the schema expects at a place in a recipe."""

    annotation: Any
    metadata: tuple[Any, ...] = ()
    path: tuple[str, ...] = ()
    """The place as a schema path: ANY_NAME for chosen names, without list indices."""
    field: FieldInfo | None = None
    """The field, if the place is a key of the schema and not an item of a list or mapping."""


def kind_at(model: type[BaseModel], place: tuple[str | int, ...]) -> Kind | None:
    """What the schema expects at a place; None for an unknown place."""
    kind: Kind | None = Kind(model)
    for part in place:
        kind = kind and kind_below(kind, part)
    return kind


def kind_below(kind: Kind, part: str | int) -> Kind | None:
    """What the schema expects one step below a kind; None for an unknown step."""
    section = section_in(kind.annotation)
    if section is not None:
        field = section.model_fields.get(str(part))
        return field and Kind(field.annotation, tuple(field.metadata), (*kind.path, str(part)), field)
    for option in options(kind.annotation):
        inner = get_args(option)
        if get_origin(option) is dict:
            return Kind(inner[1], path=(*kind.path, ANY_NAME))
        if get_origin(option) is list and isinstance(part, int):
            return Kind(inner[0], path=kind.path)
        if get_origin(option) is tuple and isinstance(part, int) and part < len(inner):
            return Kind(inner[part], path=kind.path)
    return None


def options(annotation: Any) -> list[Any]:
    """The kinds that an annotation allows, without its metadata."""
    if get_origin(annotation) is Annotated:
        return options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for option in get_args(annotation) for kind in options(option)]
    return [annotation]


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The settings models among the kinds of an annotation: several if a key selects one of them."""
    return [kind for kind in options(annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The settings model among the kinds of an annotation; for several, one with the keys of all of them."""
    sections = sections_in(annotation)
    return sections[0] if len(sections) == 1 else _with_keys_of_all(tuple(sections)) if sections else None


@cache
def _with_keys_of_all(sections: tuple[type[BaseModel], ...]) -> type[BaseModel]:
    """A settings model with the keys of several, and the choices of all, for messages about any of them."""
    base = next(kind for kind in sections[0].__mro__ if all(issubclass(section, kind) for section in sections))
    fields: dict[str, Any] = {}
    for section in sections:
        for name, field in section.model_fields.items():
            if name not in fields:
                fields[name] = (field.annotation, field)
            elif get_origin(field.annotation) is Literal:
                choices = (*get_args(fields[name][0]), *get_args(field.annotation))
                first = copy(fields[name][1])
                first.annotation = Literal[tuple(dict.fromkeys(choices))]
                fields[name] = (first.annotation, first)
    return create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields)


def without_tags(model: type[BaseModel], place: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """A place as pydantic names it, without the names of settings models in it."""
    path, parts = [], iter(place)
    kind: Kind | None = Kind(model)
    for part in parts:
        path.append(part)
        kind = kind and kind_below(kind, part)
        if kind and len(sections_in(kind.annotation)) > 1:
            next(parts, None)
    return tuple(path)


def tag_of(model: type[BaseModel], place: tuple[str | int, ...]) -> str:
    """The key that selects one of several settings models at a place. Raises ValueError if there is only one."""
    kind = kind_at(model, place)
    first, *others = [section.model_fields for section in (sections_in(kind.annotation) if kind else [])] or [{}]
    for name, field in first.items():
        if get_origin(field.annotation) is Literal and all(fields[name].annotation != field.annotation for fields in others):
            return name
    raise ValueError(f"{place} holds settings of one kind")


def takes_null(annotation: Any) -> bool:
    return type(None) in options(annotation)


def accepted(annotation: Any, metadata: Any = ()) -> str:
    """A description of the values that this annotation accepts."""
    kinds = [kind for kind in options(annotation) if kind is not type(None)]
    metadata = [*metadata, *(extra for option in _with_metadata(annotation) for extra in option)]
    return " or ".join(dict.fromkeys(_words(kind, metadata) for kind in kinds))


def _with_metadata(annotation: Any) -> Iterator[tuple[Any, ...]]:
    if get_origin(annotation) is Annotated:
        for extra in annotation.__metadata__:
            yield tuple(extra.metadata) if isinstance(extra, FieldInfo) else (extra,)
        yield from _with_metadata(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for option in get_args(annotation):
            yield from _with_metadata(option)


def _words(kind: Any, metadata: list[Any]) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        words = [str(value).lower() if isinstance(value, bool) else str(value) for value in inner]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    if origin is list:
        return f"a list, each item {accepted(inner[0])}"
    if origin is tuple:
        return f"a list of {len(inner)}: " + ", then ".join(
            accepted(item) + (" or null" if takes_null(item) else "") for item in inner
        )
    if origin is dict:
        section = section_in(inner[1])
        below = f"its own keys ({', '.join(section.model_fields)})" if section else accepted(inner[1])
        return f"a mapping of names, each with {below}"
    if kind is Any:
        return "anything"
    if kind is bool:
        return "true or false"
    if kind is int:
        return "a whole number" + _bounds(metadata)
    if kind is float:
        return "a number" + _bounds(metadata)
    if kind is date:
        return "a date, such as 2026-06-01"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "a mapping of keys"
    return _text_words(metadata)


def _text_words(metadata: list[Any]) -> str:
    for extra in metadata:
        if words := getattr(extra, "words", None):
            return words
    return "text"


def _bounds(metadata: list[Any]) -> str:
    given = {
        name: getattr(extra, name)
        for extra in metadata
        for name in ("ge", "gt", "le", "lt", "multiple_of")
        if getattr(extra, name, None) is not None
    }
    least, above, most, below = (given.get(name) for name in ("ge", "gt", "le", "lt"))
    several = f", a multiple of {given['multiple_of']}" if "multiple_of" in given else ""
    if least is not None and most is not None:
        return f" from {_number(least)} to {_number(most)}{several}"
    lower = f"of at least {_number(least)}" if least is not None else f"above {_number(above)}" if above is not None else ""
    upper = f"at most {_number(most)}" if most is not None else f"below {_number(below)}" if below is not None else ""
    if lower and upper:
        return f" {lower} and {upper}{several}"
    if upper.startswith("at most"):
        upper = "of " + upper
    return (f" {lower or upper}" if lower or upper else "") + several


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:g}"


def meant_by(model: type[BaseModel], section: tuple[str, ...], name: str, given: frozenset[str] = frozenset()) -> list[Key]:
    """The keys that an unknown `name` in `section` most likely means: those of the section before others, whole names before
    similar ones. section: with ANY_NAME instead of chosen names. given: keys that the section already has, which are not
    proposed."""
    keys = keys_of(model)
    beside = [key for key in keys if key.path[:-1] == section and key.name not in given]
    inside = [key for key in keys if key.path[: len(section)] == section]
    wanted = name.lower().replace("-", "_").replace(" ", "_")
    other = OTHER_WORDS.get(wanted, wanted)
    near = (
        _like(wanted, beside, 0.75)
        or _named(other, beside)
        or _named(wanted, inside)
        or _named(other, inside)
        or _named(wanted, keys)
        or _like(wanted, beside, 0.6)
        or _named(other, keys)
        or _like(wanted, keys, 0.8)
    )
    near = [key for key in near if len(key.path) == min(len(each.path) for each in near)]
    return [key for key in near if not _is_left_out(model, key)] or near


def _named(name: str, keys: list[Key]) -> list[Key]:
    return [key for key in keys if key.name == name]


def _like(name: str, keys: list[Key], cutoff: float) -> list[Key]:
    best = difflib.get_close_matches(name, list(dict.fromkeys(key.name for key in keys)), n=1, cutoff=cutoff)
    return _named(best[0], keys) if best else []


def _is_left_out(model: type[BaseModel], key: Key) -> bool:
    """Whether a key belongs to a section that a recipe has only where it names it."""
    section = kind_at(model, key.path[:-1])
    return section is not None and section.field is not None and section.field.default is None
