"""The pages for readers: README and docs/*, with their fenced blocks."""

import re
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PAGES = [
    *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((PROJECT / "docs").glob("*.md")),
]
FENCE = re.compile(
    r"(?:^[ ]*<!-- (?P<note>.+?) -->\n)?^(?P<indent>[ ]*)```(?P<language>\w+)\n(?P<text>.*?)^[ ]*```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, language and text; `note` is the HTML comment on the line before it, if any."""

    page: str
    line: int
    language: str
    text: str
    note: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """The blocks of all pages in these languages."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            if match["language"] in languages:
                body = "\n".join(line.removeprefix(match["indent"]) for line in match["text"].splitlines()) + "\n"
                place = text[: match.start("language")].count("\n") + 1
                found.append(Block(str(page.relative_to(PROJECT)), place, match["language"], body, match["note"] or ""))
    return found


def commands(text: str) -> list[str]:
    """The commands of a shell block: continued lines joined, here-documents whole, comments and prompts away."""
    lines, found = text.splitlines(), []
    prompts = any(line.startswith("$ ") for line in lines)  # what has no prompt is then output
    while lines:
        line = lines.pop(0)
        if prompts and not line.startswith("$ "):
            continue
        command = line.removeprefix("$ ")
        while command.endswith("\\") and lines:
            command = command[:-1] + lines.pop(0).strip()
        if here := re.search(r"<<'?(\w+)'?", command):
            while lines and (last := lines.pop(0)) != here[1]:
                command += "\n" + last
            command += "\n" + here[1]
        if command.strip() and not command.lstrip().startswith("#"):
            found.append(command)
    return found
