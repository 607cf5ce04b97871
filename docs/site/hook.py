"""The site's pages that lie elsewhere or are generated, and links between them: a hook of mkdocs, see mkdocs.yml."""

import json
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, Files

PROJECT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "docs/README.md": "pages.md",
    "docs/notebooks/analysts.ipynb": "notebooks/analysts.md",
    "docs/notebooks/answers.ipynb": "notebooks/answers.md",
}
"""Files of the project that are pages of the site under another name."""
SOURCES = {page: file for file, page in PAGES.items()}
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]\n]*(?:\[[^\]]*\][^\]\n]*)*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^( *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config) -> Files:
    """Adds the pages of PAGES and the references of commands, columns and a recipe's keys."""
    for file, page in PAGES.items():
        if file.startswith("docs/"):
            files.remove(files.get_file_from_path(file.removeprefix("docs/")))
        text = (PROJECT / file).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=notebook_text(text) if file.endswith(".ipynb") else text))
    files.remove(files.get_file_from_path("recipe.md"))
    files.append(File.generated(config, "recipe.md", content=recipe_page()))
    files.append(File.generated(config, "commands.md", content=command_reference()))
    files.append(File.generated(config, "columns.md", content=column_reference()))
    return files


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """Links as the site has them: to pages under their names there; what is no page of the site is named, not linked."""
    place = page.file.src_uri
    folder = posixpath.dirname(SOURCES.get(place, f"docs/{place}"))

    def link(match: re.Match[str]) -> str:
        path, mark, anchor = match["target"].partition("#")
        if re.match(r"\w+:", path) or not path:
            return match[0]
        file = posixpath.normpath(posixpath.join(folder, path))
        name = PAGES.get(file, file.removeprefix("docs/") if file.startswith("docs/") else None)
        if name is None and (PROJECT / file).exists():
            return match["text"]
        target = posixpath.relpath(name or file, posixpath.dirname(place) or ".")
        return f"{match['image']}[{match['text']}]({target}{mark}{anchor})"

    return "".join(part if part.lstrip().startswith("```") else LINK.sub(link, part) for part in FENCE.split(markdown))


def recipe_page() -> str:
    """docs/recipe.md, and the reference of all keys."""
    from pipelines.contract import Recipe, reference

    return (PROJECT / "docs" / "recipe.md").read_text(encoding="utf-8") + "\n" + reference(Recipe)


def command_reference() -> str:
    """What `millrace COMMAND --help` says, of every command."""
    import typer
    from typer.cli import get_docs_for_click

    from pipelines.cli import app

    command = typer.main.get_command(app)
    with command.make_context("millrace", [], resilient_parsing=True) as context:
        text = get_docs_for_click(obj=command, ctx=context, name="millrace")
    text = re.sub(r"\*\*Commands\*\*:\n\n.*?(?=\n## )", "", text, flags=re.DOTALL)  # the contents beside the page list them
    text = re.sub(r"(?m)^\* `--help`: .*\n", "", text).replace("# `millrace`", "# Commands", 1)
    return re.sub(r"\*\*Options\*\*:\n\n(?!\*)", "", text)


def column_reference() -> str:
    """What each column of the lake's tables and of datasets' files holds."""
    from resources.catalog.comments import DATASETS, DESCRIBED, RELATIONS, comment_on

    parts = ["# Columns", "Tables of a lake, and files of datasets: what `from relation_columns` says of them."]
    for name, schema in DESCRIBED.items():
        rows = [f"| `{field.name}` | {field.type} | {comment_on(name, field.name)} |" for field in schema]
        text = (RELATIONS.get(name) or DATASETS[name])["is"]
        parts += [f"## {name}", f"{text}.", "\n".join(["| column | type | meaning |", "|---|---|---|", *rows])]
    return "\n\n".join(parts)


def notebook_text(text: str) -> str:
    """A notebook as Markdown: its cells with their stored texts, tables and pictures."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                parts.append(f"![]({'data:image/png;base64,' + ''.join(data['image/png']).replace(chr(10), '')})")
            elif "text/markdown" in data:
                parts.append("".join(data["text/markdown"]))
            elif shown := "".join(data["text/plain"]).rstrip():
                parts.append(f"```text\n{shown}\n```")
    return "\n\n".join(parts)
