"""Two answers with their differences marked, word by word, as HTML for a notebook or a page: no script, no network.

    differences("a small cat", "a big cat")      # "a <del>small</del> cat", "a <ins>big</ins> cat"
    pairs_as_html(pairs, "3f2a91", "77b0c2")     # all pairs, each answer beside the other

Texts are escaped, and characters that cannot be seen are shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup, escape

from resources.plain_text import finalize, visible
from resources.reporting.answers_side_by_side import Pair

TEMPLATES = Path(__file__).with_name("templates")
WORD = re.compile(r"\s+|\w+|[^\w\s]")


def differences(before: str, after: str) -> tuple[Markup, Markup]:
    """Both texts, with what only the first has in <del> and what only the second has in <ins>."""
    ours, theirs = WORD.findall(visible(before, lines=True)), WORD.findall(visible(after, lines=True))
    left, right = [], []
    for kind, a, b, c, d in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        one, other = escape("".join(ours[a:b])), escape("".join(theirs[c:d]))
        left.append(one if kind == "equal" or not one else Markup("<del>{}</del>").format(one))
        right.append(other if kind == "equal" or not other else Markup("<ins>{}</ins>").format(other))
    return Markup("").join(left), Markup("").join(right)


def pairs_as_html(pairs: Sequence[Pair], before: str, after: str) -> str:
    """A block that stands for itself in a notebook's cell and in a page. before, after: what the releases are called."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=select_autoescape(["html.j2"]), trim_blocks=True, lstrip_blocks=True,
        finalize=finalize)
    shown = [(pair, *differences(pair.before, pair.after)) for pair in pairs]
    return environment.get_template("answers.html.j2").render(
        shown=shown, before=before, after=after, same=sum(pair.same for pair in pairs))
