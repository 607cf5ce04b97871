"""A look at rendered rows: what is context, what is learnt, and which rows are left out and why.

picture = Picture.of(dataset, "train", tokenizer, count=3)
picture.page()                              # an HTML page
picture.rows[0].contexts[0]                 # [TokenSpan(text="...", is_learnt=False, tokens=12), ...]"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import jinja2
import numpy as np
from transformers import PreTrainedTokenizerBase

from model_ops.jobs import ModelError
from model_ops.rendering.contexts import RenderedRow, rendered_rows
from model_ops.rendering.row import RenderingSettings, Row, Split, iterate_rows
from model_ops.rendering.tokens import Context, ServedTokens

ROWS_LOOKED_AT = 2_000
"""Rows that are rendered to count the ones that are left out."""

TICKS = re.compile(r"`{3,}")

TEMPLATE = Path(__file__).with_name("templates") / "picture.html.j2"


@dataclass(frozen=True)
class TokenSpan:
    """Consecutive tokens that are all learnt or all context."""

    text: str
    is_learnt: bool
    tokens: int


@dataclass(frozen=True)
class ShownRow:
    """A row's contexts, or the reason why it is left out."""

    row_id: str
    contexts: list[list[TokenSpan]]
    refusal: str = ""
    served_answers: int = 0

    @property
    def tokens(self) -> int:
        return sum(run.tokens for context in self.contexts for run in context)

    @property
    def learnt_tokens(self) -> int:
        return sum(run.tokens for context in self.contexts for run in context if run.is_learnt)


@dataclass(frozen=True)
class Picture:
    """Some rows of a split, and counts over the first `looked_at` rows."""

    dataset: str
    split: Split
    rows: list[ShownRow]
    looked_at: int = 0
    contexts: int = 0
    tokens: int = 0
    learnt_tokens: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """Rows that are left out, by reason."""

    @classmethod
    def of(
        cls,
        dataset: Path,
        split: Split,
        tokenizer: PreTrainedTokenizerBase,
        count: int,
        row_id: str | None = None,
        served: ServedTokens | None = None,
    ) -> Picture:
        """The first `count` rows of a split that are taught and as many that are left out; or the row `row_id` alone. Raises
        ModelError for an unknown row id, and as `rendered_rows` does."""
        rows: Iterator[Row] = iterate_rows(dataset, split)
        rows = (row for row in rows if row.row_id == row_id) if row_id is not None else islice(rows, ROWS_LOOKED_AT)
        shown: list[ShownRow] = []
        counts, dropped, pictures = Counter[str](), Counter[str](), Counter[bool]()
        for rendered in rendered_rows(rows, tokenizer, RenderingSettings.read(dataset), served):
            reason = reason_of(rendered)
            counts["rows"] += 1
            counts["contexts"] += len(rendered.contexts)
            for input_ids, targets in rendered.contexts:
                counts["tokens"] += len(input_ids)
                counts["learnt"] += int(targets.sum())
            if reason:
                dropped[reason] += 1
            pictures[bool(reason)] += 1
            if pictures[bool(reason)] <= count:
                shown.append(
                    ShownRow(
                        rendered.row.row_id,
                        [runs(tokenizer, context) for context in rendered.contexts],
                        reason,
                        rendered.served_answers,
                    )
                )
        if row_id is not None and not shown:
            raise ModelError(f"{split} of {dataset} has no row {row_id}; `millrace why {row_id}` tells what became of it")
        return cls(
            str(dataset),
            split,
            shown,
            counts["rows"],
            counts["contexts"],
            counts["tokens"],
            counts["learnt"],
            dict(dropped.most_common()),
        )

    def markdown(self, rows: int = 3, characters: int = 1_500) -> str:
        """The first rows as Markdown, learnt text between « and ». Of a longer text the beginning and the end are shown."""
        lines = [
            f"First {self.looked_at:,} rows of {self.split}: {self.contexts:,} contexts, {self.tokens:,} tokens, "
            f"{self.learnt_tokens:,} learnt. Learnt text stands between « and »."
        ]
        lines += [f"- {count:,} rows are left out: {reason}" for reason, count in self.dropped.items()]
        for row in self.rows[:rows]:
            lines.append(
                f"**{row.row_id}** "
                + (f"left out: {row.refusal}" if row.refusal else f"{row.learnt_tokens:,} of {row.tokens:,} tokens learnt")
            )
            for context in row.contexts:
                text = "".join(f"«{run.text}»" if run.is_learnt else run.text for run in context)
                if len(text) > characters:
                    text = f"{text[: characters // 2]}\n[...]\n{text[-characters // 2 :]}"
                fence = "`" * (max((len(ticks) for ticks in TICKS.findall(text)), default=2) + 1)
                lines.append(f"{fence}\n{text}\n{fence}")
        return "\n\n".join(lines) + "\n"

    def page(self) -> str:
        """A self-contained HTML page; text of rows is escaped."""
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        return environment.from_string(TEMPLATE.read_text()).render(picture=self)


def reason_of(rendered: RenderedRow) -> str:
    """Why a row is left out; empty if it is taught."""
    if rendered.refusal is not None:
        return str(rendered.refusal)
    return "" if any(targets[1:].any() for _, targets in rendered.contexts) else "no answer with weight 1"


def runs(tokenizer: PreTrainedTokenizerBase, context: Context) -> list[TokenSpan]:
    """The runs of a context, in order."""
    input_ids, targets = context
    ends = [*(np.flatnonzero(targets[1:] != targets[:-1]) + 1), len(input_ids)]
    spans, begin = [], 0
    for end in ends:
        if end > begin:
            spans.append(TokenSpan(tokenizer.decode(input_ids[begin:end]), bool(targets[begin]), int(end - begin)))
        begin = end
    return spans
