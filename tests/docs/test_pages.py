"""What the pages show is true of the code: recipes load, commands and options exist, links lead somewhere."""

import re
import shlex
import sys
from datetime import UTC, datetime

import pytest
import typer
import yaml

from pipelines.contract import Recipe, load_recipe, reference
from pipelines.graph.sensors import OBJECTS_PER_TICK
from resources.deciding.causes import next_time
from resources.sources.unread_objects import WALK_TICKS
from tests.docs.pages import PAGES, PROJECT, blocks, commands

RECIPES = [block for block in blocks("yaml") if not block.text.lstrip().startswith("# yaml-language-server")]
NEEDED = {
    "workload": "math-tutor",
    "base_model": "tiny",
    "sources": {"gateway": {"uri": "logs"}},
    "seeds": {"handmade": {"uri": "seeds.jsonl"}},
}


@pytest.mark.parametrize("block", RECIPES, ids=str)
def test_every_yaml_block_is_a_recipe_or_a_part_of_one(block, tmp_path):
    """A part is completed with the keys that every recipe needs; on docs/recipes.md every block is whole."""
    content = yaml.safe_load(block.text)
    for directory in ("Qwen3-0.6B", "embedder"):
        (tmp_path / "models" / directory).mkdir(parents=True)
    (tmp_path / "sums.py").write_text("class Sums: ...")
    (tmp_path / "agent.py").write_text("def run(row, base_url, api_key): ...")
    for environment in ("agent", "vf", "vllm"):
        (folder := tmp_path / "venvs" / environment / "bin").mkdir(parents=True)
        (folder / "python").symlink_to(sys.executable)
    whole = block.page == "docs/recipes.md" or "workload" in content
    recipe = tmp_path / "recipe.yaml"
    missing = {} if whole else {key: value for key, value in NEEDED.items() if key not in content}
    recipe.write_text(yaml.safe_dump(missing) * bool(missing) + block.text)
    assert load_recipe(recipe).workload == content.get("workload", "math-tutor")


def test_the_weekly_recipe_is_due_on_mondays(tmp_path):
    [block] = [block for block in RECIPES if block.page == "docs/recipes.md" and "continue_from: last" in block.text]
    (tmp_path / "models" / "Qwen3-0.6B").mkdir(parents=True)
    path = tmp_path / "recipe.yaml"
    path.write_text(block.text)
    recipe = load_recipe(path)
    assert recipe.automation.decide.enabled and "schedule" in recipe.automation.decide.causes
    assert next_time(recipe.facts.cron, "UTC", datetime(2026, 6, 3, tzinfo=UTC)) == datetime(2026, 6, 8, 3, tzinfo=UTC)


def test_objects_that_are_found_within_four_hours_are_as_many_as_the_page_says():
    most = WALK_TICKS * OBJECTS_PER_TICK
    assert WALK_TICKS == 4 * 60 and most == 1_200_000
    said = " ".join((PROJECT / "docs" / "automation.md").read_text(encoding="utf-8").split())
    assert f"{most / 1e6:g} million objects" in said and f"n / {OBJECTS_PER_TICK:,} minutes" in said


def shown_commands():
    return [
        pytest.param(command, id=f"{block} {command[:40]}")
        for block in blocks("bash", "console")
        for command in commands(block.text)
        if re.match(r"(\S+/)?millrace\s", command)
    ]


@pytest.mark.parametrize("command", shown_commands())
def test_every_shown_command_exists_with_its_options(command):
    from pipelines.cli import app

    group = typer.main.get_command(app)
    words = shlex.split(command.split(" > ")[0], comments=True)[1:]
    if words[0].startswith("--"):
        assert words[0] in {option for parameter in group.params for option in parameter.opts}
        return
    subcommand = group.commands[words[0]]
    with subcommand.make_context(words[0], [], resilient_parsing=True) as context:
        subcommand.make_parser(context).parse_args(words[1:])


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings get on GitHub."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        text = file.read_text(encoding="utf-8") if anchor else ""
        text += reference(Recipe) if anchor and file.name == "recipe.md" else ""  # as the site has it
        assert not anchor or anchor in anchors(text), f"{page.name}: {target}"


def test_the_index_names_every_page():
    index = (PROJECT / "docs" / "README.md").read_text(encoding="utf-8")
    assert all(f"({page.name})" in index for page in PAGES if page.parent.name == "docs" and page.name != "README.md")


def named_files() -> list[tuple[str, str]]:
    """(page, path) of every project path that a page names in backticks; an architecture's own paths may be relative to a
    room."""
    folders = "assets|benchmarks|millrace|model_ops|pipelines|recipes|resources|sql|tests"
    names = re.compile(rf"`((?:{folders})/[\w./-]*)`")
    return sorted({(page.name, match) for page in PAGES for match in names.findall(page.read_text(encoding="utf-8"))})


EXAMPLES = {"acme", "mydrafter", "mytask", "myobjective", "traffic_report", "NAME"}
"""Names of what docs/extending.md adds, and placeholders."""


@pytest.mark.parametrize("page, path", named_files())
def test_files_that_pages_name_exist(page, path):
    invented = any(example in path for example in EXAMPLES)
    assert invented or (PROJECT / path).exists(), f"{page} names {path}"
