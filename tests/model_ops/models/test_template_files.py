"""Chat templates are found wherever a model keeps them, by the same reader for the check, the run and the servers' commands."""

import json
import shutil

import pytest
from transformers import AutoTokenizer

from model_ops.files.template_files import chat_templates, template_text
from model_ops.jobs.job import Job, Progress
from model_ops.models.model_directory import load_tokenizer
from model_ops.models.verify_model import verify_files_to_serve
from model_ops.operations.import_base import run

PLACES = {
    "a file": ({"chat_template.jinja": "A"}, {"default": "A"}),
    "a file and others": (
        {"chat_template.jinja": "A", "additional_chat_templates/tool_use.jinja": "B"},
        {"default": "A", "tool_use": "B"},
    ),
    "others alone": (
        {"additional_chat_templates/default.jinja": "A", "additional_chat_templates/rag.jinja": "C"},
        {"default": "A", "rag": "C"},
    ),
    "a text of the config": ({"tokenizer_config.json": "A"}, {"default": "A"}),
    "a list in the config": (
        {"tokenizer_config.json": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]},
        {"default": "A", "tool_use": "B"},
    ),
    "a file before the config": ({"chat_template.jinja": "A", "tokenizer_config.json": "Z"}, {"default": "A"}),
    "a processor's": ({"chat_template.json": "A"}, {"default": "A"}),
    "the config before a processor's": ({"tokenizer_config.json": "A", "chat_template.json": "Z"}, {"default": "A"}),
    "nowhere": ({}, {}),
    "a file of nothing": ({"chat_template.jinja": " \n"}, {}),
    "a config of null": ({"tokenizer_config.json": None}, {}),
}


@pytest.fixture
def kept(tiny_model, tmp_path):
    """A model that keeps its templates elsewhere."""

    def make(files):
        folder = tmp_path / "model"
        shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("chat_template.jinja"))
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            old = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(content if name.endswith(".jinja") else json.dumps({**old, "chat_template": content}))
        return folder

    return make


def named(template):
    return template if isinstance(template, dict) else {"default": template} if (template or "").strip() else {}


@pytest.mark.parametrize("place", PLACES)
def test_the_reader_finds_what_the_tokenizer_renders_with(kept, place):
    files, wanted = PLACES[place]
    folder = kept(files)
    assert chat_templates(folder) == named(load_tokenizer(folder).chat_template) == wanted
    if "processor" not in place:
        assert named(AutoTokenizer.from_pretrained(folder).chat_template) == wanted
    said = [fault.sentence for fault in verify_files_to_serve(folder, json.loads((folder / "config.json").read_text()))]
    assert any("no chat template" in sentence for sentence in said) == (not wanted)
    assert all(text in template_text(folder) for text in wanted.values())


@pytest.mark.parametrize("place", ["a file and others", "others alone", "a list in the config", "a processor's"])
def test_an_imported_model_keeps_every_template(kept, tmp_path, place):
    files, wanted = PLACES[place]
    run(Job(operation="import_base", output=tmp_path / "base", settings={"model": str(kept(files))}), Progress())
    assert chat_templates(tmp_path / "base") == wanted
