"""Makes a recipe's paths absolute; reports (key, sentence) for each that does not exist."""

from __future__ import annotations

import ast
import copy
import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from model_ops.files import template_files
from model_ops.jobs import ModelError
from model_ops.operations import BASE, LAKE_MODELS, TRAINED
from model_ops.pruning import refuse_unusable_base
from model_ops.reinforcement import LOOKUP_DRAFTERS
from model_ops.speculators import ARCHITECTURES
from pipelines.contract.fields import RecipeFields
from resources.composing import EvalSettings
from resources.sources import absolute_uri, is_local

TASKS = "datasets.rl_prompts.tasks"
GRADED = "a function of a file, as rewards.py:grade"
SERVED = ("evaluation", "rft")
"""Sections that start a server."""
ACTED = {"environment": "a class of a file, as envs.py:Shop", "agent": "a function of a file, as agent.py:run"}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class _NoPathError(Exception):
    """The text cannot be a path on this machine."""


def settle_places(recipe: RecipeFields, home: Path) -> Iterator[tuple[str, str]]:
    """Makes the paths of `recipe` absolute, relative to `home`; yields problems."""
    named: dict[str, Mapping[str, Any]] = {"sources": recipe.sources, "seeds": recipe.seeds, "evals": recipe.evals}
    for section, settings_by_name in named.items():
        for name, settings in settings_by_name.items():
            for key in ("uri", "tokenizer"):
                try:
                    if (given := getattr(settings, key, None)) is not None:
                        setattr(settings, key, _absolute(given, home))
                except _NoPathError as error:
                    yield f"{section}.{name}.{key}", str(error)
    for section, suites in (("evals", recipe.evals), (TASKS, _tasks(recipe))):
        for name, suite in suites.items():
            try:
                if section == TASKS:
                    suite.uri = _absolute(suite.uri, home)
                suite.answers = _absolute(suite.answers, home) if suite.answers else None
            except _NoPathError as error:
                yield f"{section}.{name}", str(error)
    yield from _settle_directories(recipe, home)
    yield from _settle_interpreters(recipe, home)
    yield from _settle_merged(recipe, home)
    yield from _settle_base(recipe, home)
    yield from _settle_student(recipe, home)
    yield from _settle_teacher(recipe, home)
    yield from _settle_graders(recipe, home)
    yield from _layers_of_the_teacher(recipe)


def absolute_places(content: Mapping[str, Any], recipe: RecipeFields) -> dict[str, Any]:
    """A recipe's values as given, with the absolute paths of `settle_places`."""
    found = copy.deepcopy(dict(content))
    for section in ("sources", "seeds", "evals"):
        for name, settings in getattr(recipe, section).items():
            found[section][name] |= {key: place for key in ("uri", "tokenizer") if (place := getattr(settings, key, None))}
    for name, suite in recipe.evals.items():
        if suite.answers:
            found["evals"][name]["answers"] = suite.answers
    for name, suite in _tasks(recipe).items():
        found["datasets"]["rl_prompts"]["tasks"][name] |= {
            key: place for key in ("uri", "answers") if (place := getattr(suite, key))
        }
    found["base_model"] = recipe.base_model
    if "model" in (semantic := (found.get("curation") or {}).get("semantic_duplicates") or {}):
        semantic["model"] = recipe.curation.semantic_duplicates.model
    if (found.get("merge") or {}).get("models"):
        found["merge"]["models"] = recipe.merge.models
    for key, grader in recipe.graders.items():
        *sections, last = key.split(".")
        holder = reduce(lambda within, name: within.get(name) or {}, sections, found)
        if isinstance(holder.get(last), str):
            (holder[last],) = (part.by for part in grader.parts.values())
        elif last in holder:
            for name, part in grader.parts.items():
                holder[last]["parts"][name]["by"] = part.by
    for key in (*ACTED, "python"):
        if (found.get("rft") or {}).get(key):
            found["rft"][key] = getattr(recipe.rft, key)
    for section, settings in (("student", recipe.student), ("teacher", recipe.teacher)):
        if "base" in (given := found.get(section) or {}):
            given["base"] = settings.base
    for section in SERVED:
        if "python" in (server := (found.get(section) or {}).get("server") or {}):
            server["python"] = getattr(recipe, section).server.python
    if (found.get("rft") or {}).get("drafter"):
        found["rft"]["drafter"] = recipe.rft.drafter
    drafter = found.get("speculator") or {}
    for key, _, _ in _directories_of_drafter(recipe):
        if key in drafter:
            drafter[key] = getattr(recipe.speculator, key)
    return found


def _tasks(recipe: RecipeFields) -> dict[str, EvalSettings]:
    """The files of `datasets.rl_prompts.tasks`."""
    return recipe.datasets.rl_prompts.tasks if recipe.datasets.rl_prompts is not None else {}


def _directories_of_drafter(recipe: RecipeFields) -> Iterator[tuple[str, str, str]]:
    """Keys of `speculator` that name a directory: (key, the word that names a model of the lake instead, what it holds)."""
    yield "continue_from", "last", "a drafter"
    start = ARCHITECTURES[recipe.speculator.architecture].starts_from
    if start is not None:
        yield start.key, start.word, start.what


def _settle_directories(recipe: RecipeFields, home: Path) -> Iterator[tuple[str, str]]:
    semantic = recipe.curation.semantic_duplicates
    if semantic.model:
        key = "curation.semantic_duplicates.model"
        try:
            semantic.model = _absolute(semantic.model, home)
            if semantic.enabled and not Path(semantic.model).is_dir():
                yield key, f"there is no directory {semantic.model}; give the directory of an embedding model"
        except (_NoPathError, OSError):
            yield key, "this is not a path on this machine; give the directory of an embedding model"
    named = [("speculator", field, (word,), what) for field, word, what in _directories_of_drafter(recipe)]
    if recipe.rft is not None:
        named.append(("rft", "drafter", LOOKUP_DRAFTERS, "a drafter"))
    for section, field, known, what in named:
        given = getattr(holder := getattr(recipe, section), field)
        if given is None or given in known:
            continue
        words = ", ".join(f"`{word}`" for word in known)
        try:
            place = _absolute(given, home)
            setattr(holder, field, place)
            if not Path(place).is_dir():
                yield f"{section}.{field}", f"there is no directory {place}; give the directory of {what}, or {words}"
        except (_NoPathError, OSError):
            yield f"{section}.{field}", f"this is not a path on this machine; give the directory of {what}, or {words}"


def _settle_interpreters(recipe: RecipeFields, home: Path) -> Iterator[tuple[str, str]]:
    """Makes interpreters absolute. Links stay: an environment's interpreter is one, and is found by its place."""
    for key, settings, wanted in (
        ("evaluation.server.python", recipe.evaluation.server, "a Python interpreter, such as ./venvs/vllm/bin/python"),
        ("rft.server.python", recipe.rft and recipe.rft.server, "a Python interpreter, such as ./venvs/vllm/bin/python"),
        ("rft.python", recipe.rft, "a Python interpreter, such as ./venvs/agent/bin/python"),
    ):
        if settings is None or settings.python is None:
            continue
        try:
            place = os.path.normpath(home / Path(settings.python).expanduser())
            if not os.access(place, os.X_OK) or Path(place).is_dir():
                yield key, f"there is no program {place}; give {wanted}"
            settings.python = place
        except (RuntimeError, ValueError, OSError):
            yield key, f"this is not a path on this machine; give {wanted}"


def _settle_merged(recipe: RecipeFields, home: Path) -> Iterator[tuple[str, str]]:
    """Makes the directories of `merge.models` absolute."""
    if recipe.merge is None or recipe.merge.models is None:
        return
    for index, given in enumerate(recipe.merge.models):
        if given in LAKE_MODELS:
            continue
        try:
            place = recipe.merge.models[index] = _absolute(given, home)
            if not Path(place).is_dir():
                yield "merge.models", f"there is no directory {place}; give directories of models, `{TRAINED}` or `{BASE}`"
        except (_NoPathError, OSError):
            yield "merge.models", f"this is not a path on this machine; give directories of models, `{TRAINED}` or `{BASE}`"


def _settle_base(recipe: RecipeFields, home: Path) -> Iterator[tuple[str, str]]:
    name = recipe.base_model
    is_here = name == "tiny" or name.startswith((".", "/", "~")) or (home / name).is_dir()
    if recipe.base_revision is not None and is_here:
        yield "base_revision", f"it is {recipe.base_revision}, and base_model is not on the Hugging Face Hub; leave it out"
    if name == "tiny":
        return
    try:
        if name.startswith((".", "/", "~")) or (home / name).is_dir():
            recipe.base_model = str(Path(_absolute(name, home)).resolve())
            if not Path(recipe.base_model).is_dir():
                yield "base_model", f"there is no directory {recipe.base_model}; name a model's directory, a Hub id, or `tiny`"
            return
    except (_NoPathError, OSError):
        yield "base_model", "this is not a path on this machine; give the directory of a model, a Hub id, or `tiny`"
        return
    if name.strip().lower() == "tiny":
        yield "base_model", f"it holds {name!r}; did you mean tiny?"
    elif not _HUB_ID.fullmatch(name) or len(name) > 200:
        yield (
            "base_model",
            (
                "this is neither a directory nor an id of the Hugging Face Hub; give a directory, an id such as "
                "Qwen/Qwen3-0.6B, or `tiny`"
            ),
        )


def _settle_student(recipe: RecipeFields, home: Path) -> Iterator[tuple[str, str]]:
    """Makes student.base absolute. Its config is read here; its tensors and tokenizer are read when the stage begins."""
    student = recipe.student
    if student.base is None:
        return
    try:
        student.base = str(Path(_absolute(student.base, home)).resolve())
        if not Path(student.base).is_dir():
            yield "student.base", f"there is no directory {student.base}; give the directory of a model"
        elif student.enabled:
            refuse_unusable_base(Path(student.base))
    except (_NoPathError, OSError):
        yield "student.base", "this is not a path on this machine; give the directory of a model"
    except ModelError as error:
        yield "student.base", str(error)


def _settle_teacher(recipe: RecipeFields, home: Path) -> Iterator[tuple[str, str]]:
    """Makes teacher.base absolute, where it names a directory. A Hub id is fetched when the stage begins."""
    teacher, wanted = recipe.teacher, f"the directory of a model, a Hub id, or `{TRAINED}`"
    if teacher is None or teacher.base in (None, TRAINED):
        return
    try:
        if not (teacher.base.startswith((".", "/", "~")) or (home / teacher.base).is_dir()):
            if not _HUB_ID.fullmatch(teacher.base) or len(teacher.base) > 200:
                yield "teacher.base", f"this is neither a directory nor an id of the Hugging Face Hub; give {wanted}"
            return
        teacher.base = str(Path(_absolute(teacher.base, home)).resolve())
        if not Path(teacher.base).is_dir():
            yield "teacher.base", f"there is no directory {teacher.base}; give {wanted}"
            return
        refuse_unusable_base(Path(teacher.base))
        if not template_files.chat_templates(Path(teacher.base)):
            yield (
                "teacher.base",
                (f"{teacher.base} has no chat template, so it cannot be asked; put a chat_template.jinja into the directory"),
            )
    except (_NoPathError, OSError):
        yield "teacher.base", f"this is not a path on this machine; give {wanted}"
    except ModelError as error:
        yield "teacher.base", str(error)


def _settle_graders(recipe: RecipeFields, home: Path) -> Iterator[tuple[str, str]]:
    """Makes the files of grading functions, environments and agents absolute."""
    named = [(key, part, "by", GRADED) for key, grader in recipe.graders.items() for part in grader.parts.values()]
    named += [(f"rft.{key}", recipe.rft, key, wanted) for key, wanted in ACTED.items() if getattr(recipe.rft, key, None)]
    for key, holder, field, wanted in named:
        file, _, name = getattr(holder, field).rpartition(":")
        if not file:
            continue
        try:
            place = _absolute(file, home)
            if not Path(place).is_file():
                yield key, f"there is no file {place}; give {wanted}"
            elif file.endswith(".py") and (lack := _lack(Path(place), name)):
                yield key, lack
            setattr(holder, field, f"{place}:{name}")
        except (_NoPathError, OSError):
            yield key, f"this is not a path on this machine; give {wanted}"


def _lack(file: Path, name: str) -> str | None:
    """Why a Python file, which is not run, has nothing of this name; None where it may have."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError) as error:  # a null byte has no line, and is one or the other by Python's version
        line = getattr(error, "lineno", None)
        return f"{file} is no Python{f' in line {line}' if line else ''}: mend it"
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    bound |= {node.asname or node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    return None if bound & {name, "*"} else f"{file} defines no {name}; name what the file defines, as {file.name}:NAME"


def _layers_of_the_teacher(recipe: RecipeFields) -> Iterator[tuple[str, str]]:
    """Reports a student with more layers than its teacher. A Hub id's layers are unknown until it is fetched."""
    student, has = recipe.student, recipe.tiny.layers if recipe.base_model == "tiny" else _layers_of(recipe.base_model)
    if has is None or not student.enabled or student.base is not None:
        return
    try:
        student.depth(has)
    except ValueError as error:
        yield "student.layers", str(error)


def _layers_of(directory: str) -> int | None:
    try:
        config = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
        layers = config.get("text_config", config).get("num_hidden_layers")
    except (OSError, ValueError, AttributeError):
        return None
    return layers if isinstance(layers, int) else None


def _absolute(uri: str, home: Path) -> str:
    try:
        if is_local(uri):
            Path(uri).expanduser()  # ~user with an unknown user is an error, not a folder named ~user
        return absolute_uri(uri, home)
    except (RuntimeError, ValueError, OSError) as error:
        raise _NoPathError("this is no path on this machine; write it out, from / on or relative to the recipe") from error
