"""The JSON schema and the reference of all keys: whole, and in agreement with what load_recipe does."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.contract import reference_page
from pipelines.contract.keys import keys_of
from pipelines.contract.recipe import Recipe, load_recipe
from pipelines.contract.reference_page import chapters, json_schema, reference
from pipelines.contract.text import RecipeProblemsError, read_text
from pipelines.storage.locations import RECIPES
from tests.pipelines.contract.wrong_recipes import recipe_with, unlike_keys

PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def schema():
    made = json_schema(Recipe)
    jsonschema.Draft202012Validator.check_schema(made)
    return made


def complaints(schema, content):
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(content)]


def test_the_command_prints_both(schema):
    command = CliRunner()
    assert json.loads(command.invoke(app, ["schema"]).output) == schema
    assert command.invoke(app, ["schema", "--markdown"]).output == reference(Recipe)


def test_every_key_is_described(schema):
    for name, section in {"recipe": schema, **schema["$defs"]}.items():
        assert section["description"], name
        for key, told in section["properties"].items():
            assert len(told.get("description", "")) > 5, f"{name}.{key}"


def test_shipped_and_toy_recipes_fit_the_schema(schema, toy_recipe, tmp_path):
    (tmp_path / "toy.yaml").write_text(toy_recipe)
    for path in [*RECIPES.glob("*.yaml"), tmp_path / "toy.yaml"]:
        assert complaints(schema, read_text(path).content) == []


def test_what_the_schema_refuses_the_recipe_refuses_too(schema, tmp_path):
    refused, validator = 0, jsonschema.Draft202012Validator(schema)
    path = tmp_path / "toy.json"
    values = (None, -1, {"nope": 1})
    for place, value in enumerate(values):
        for key in unlike_keys()[place :: len(values)]:
            content, dotted = recipe_with(key, value)
            if not validator.is_valid(content):
                refused += 1
                path.write_text(json.dumps(content))
                with pytest.raises(RecipeProblemsError):
                    load_recipe(path)
                    pytest.fail(f"{dotted}: {value!r} is refused by the schema alone")
    assert refused > 100


@pytest.mark.parametrize("more", [
    "sft: {rank: 8}",
    "student: {layers: -1}",
    "quantize: {scheme: int3}",
    "student: null",
    "sources: {My Logs: {uri: a}}",
    "threads: 0",
    "sources: {a: {uri: b, format: nope}}",
])  # fmt: skip
def test_the_schema_finds_what_an_editor_should(schema, more, tmp_path):
    (tmp_path / "toy.yaml").write_text(
        "workload: a\nbase_model: tiny\nsources: {a: {uri: b}}\n".replace(
            "sources: {a: {uri: b}}\n", "" if more.startswith("sources") else "sources: {a: {uri: b}}\n"
        )
        + more
    )
    assert complaints(schema, read_text(tmp_path / "toy.yaml").content)


def test_the_page_has_all_keys_and_a_line_for_every_switch():
    page = reference(Recipe)
    for key in keys_of(Recipe):
        assert f"`{key.name}`" in page, key.dotted
        if key.name == "enabled" and key.annotation is bool:
            assert f"- `{'.'.join(key.path[:-1])}`" in page


EXAMPLES = [chapter for chapter in chapters(Recipe) if chapter.example]


def test_every_text_of_the_file_is_on_the_page():
    texts = yaml.safe_load(Path(reference_page.__file__).with_name("reference.yaml").read_text(encoding="utf-8"))["sections"]
    assert set(texts) <= {chapter.key for chapter in chapters(Recipe)}


@pytest.mark.parametrize("section", EXAMPLES, ids=lambda section: section.title)
def test_every_example_of_the_page_loads(section, tmp_path):
    (tmp_path / "models" / "embedder").mkdir(parents=True)
    given = [line.partition(":")[0] for line in section.example.splitlines() if line[0] not in " #"]
    rest = "".join(
        f"{line}\n"
        for line in ("workload: a", "base_model: tiny", "sources: {gateway: {uri: b}}")
        if line.partition(":")[0] not in given
    )
    if "handmade" in section.example and "seeds" not in given:
        rest += "seeds: {handmade: {uri: c}}\n"
    (tmp_path / "toy.yaml").write_text(rest + section.example)
    assert load_recipe(tmp_path / "toy.yaml")


def test_links_of_the_page_lead_somewhere():
    page = reference(Recipe)
    chapters = {
        line.lstrip("# ").lower().replace(" ", "-").replace(".", "").replace(",", "")
        for line in page.splitlines()
        if line.startswith("#")
    }
    links = {part.partition(")")[0] for part in page.split("](#")[1:]}
    assert links <= chapters
    for part in page.split("](")[1:]:
        target = part.partition(")")[0].partition("#")[0]
        assert not target or (PROJECT / "docs" / target).is_file()
