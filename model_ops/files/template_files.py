"""The chat templates in a model's directory, by name, in transformers' order: files of templates, then tokenizer_config.json (a
text, or a list of {name, template}), last chat_template.json, in which processors keep theirs."""

import json
import shutil
from collections.abc import Collection
from pathlib import Path

MAIN, FOLDER = "chat_template.jinja", "additional_chat_templates"


def chat_templates(directory: Path) -> dict[str, str]:
    """A file that cannot be read holds no template."""
    files = {"default": directory / MAIN} | {path.stem: path for path in sorted((directory / FOLDER).glob("*.jinja"))}
    templates = {name: path.read_text(encoding="utf-8") for name, path in files.items() if path.is_file()}
    for name in () if templates else ("tokenizer_config.json", "chat_template.json"):
        try:
            stored = json.loads((directory / name).read_text(encoding="utf-8"))["chat_template"]
            named = (
                stored
                if isinstance(stored, dict)
                else {each["name"]: each["template"] for each in stored}
                if isinstance(stored, list)
                else {"default": stored}
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if templates := {name: text for name, text in named.items() if isinstance(text, str)}:
            break
    return {name: text for name, text in templates.items() if text.strip()}


def template_text(directory: Path) -> str:
    """All templates as one text, for what looks for marks in them."""
    return "\n".join(chat_templates(directory).values())


def copy_beside_weights(source: Path, target: Path, left: Collection[str]) -> None:
    """Copies the files of a model that hold no weights, without those of the names `left`."""
    for path in sorted([*source.iterdir(), *source.glob(f"{FOLDER}/*.jinja")]):
        if (
            path.is_file()
            and path.name not in left
            and not path.name.startswith(".")
            and not path.name.endswith((".safetensors", ".safetensors.index.json"))
        ):
            (target / path.relative_to(source)).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target / path.relative_to(source))
