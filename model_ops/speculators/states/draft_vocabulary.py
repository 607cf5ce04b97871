"""Chooses the draft vocabulary: the target's most frequent tokens in its answers.

Fewer rows in the drafter's head make drafting cheaper, but a token outside the vocabulary is never accepted. Coverage is the
share of answer tokens inside, an upper bound of the acceptance rate.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from model_ops.models import end_of_text_ids
from model_ops.speculators.states.hidden_states import AnswerRow

FULL_ABOVE = 0.9
"""Above this share of the target's vocabulary, the whole vocabulary is used, because a smaller one saves nothing."""

MARK = re.compile(r"</?[A-Za-z_|][\w|]*>")
"""Marks of chat templates around reasoning and tool calls: <think>, </tool_call>, <|python_tag|>."""


def count_answers(rows: Sequence[AnswerRow], vocab: int) -> Int[Tensor, " vocab"]:
    """Count of each token of the target among the tokens that it generated in these answers."""
    counts = torch.zeros(vocab, dtype=torch.int64)
    for row in rows:
        counts += torch.bincount(torch.tensor(row.ids[row.prompt_tokens :], dtype=torch.int64), minlength=vocab)
    return counts


def forced_ids(target: Path, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Tokens of every draft vocabulary: eos ids, special and added tokens, and tokens of the chat template's marks (reasoning,
    tool calls)."""
    ids = {*end_of_text_ids(target), *tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    template = tokenizer.chat_template or ""
    for mark in sorted(set(MARK.findall(template if isinstance(template, str) else "\n".join(template.values())))):
        ids.update(tokenizer(mark, add_special_tokens=False)["input_ids"])
    return ids


def coverage_report(
    ids: Int[Tensor, " draft_vocab"], rows: Sequence[AnswerRow], held_out: Sequence[AnswerRow]
) -> dict[str, Any]:
    """Coverage of the vocabulary: on the answers that were counted, on held-out ones, and by workload."""
    inside = frozenset(ids.tolist())

    def share(answers: Sequence[AnswerRow]) -> float:
        tokens = [token for row in answers for token in row.ids[row.prompt_tokens :]]
        return sum(token in inside for token in tokens) / max(1, len(tokens))

    report: dict[str, Any] = {"draft_coverage": share(rows)}
    if held_out:
        report["draft_coverage_held_out"] = share(held_out)
    workloads = Counter(row.workload for row in rows)
    if len(workloads) > 1:
        report["draft_coverage_by_workload"] = {
            name or "unnamed": share([row for row in rows if row.workload == name]) for name in sorted(workloads)
        }
    return report


def choose_draft_vocabulary(
    counts: Int[Tensor, " vocab"], always: Collection[int], size: int | None = None, coverage: float = 0.998
) -> tuple[Int[Tensor, " draft_vocab"], float]:
    """(ids ascending, share of counted tokens they cover).

    counts: number of occurrences of each token in answers. always: ids that must be included (special tokens, eos ids). size:
    number of ids, the most frequent first, then the lowest unused ones; None: the smallest set that reaches `coverage`. Raises
    ValueError if `size` cannot hold `always` or exceeds the vocabulary.
    """
    vocab = len(counts)
    forced = torch.tensor(sorted({token for token in always if 0 <= token < vocab}), dtype=torch.int64)
    if size is not None and not len(forced) <= size <= vocab:
        raise ValueError(f"a draft vocabulary of {size} must hold {len(forced)} special tokens and fit within {vocab}")
    # stable: equal counts keep the order of ids, so the same answers give the same vocabulary
    order = torch.sort(counts, descending=True, stable=True).indices
    is_forced = torch.zeros(vocab, dtype=torch.bool)
    is_forced[forced] = True
    rest = order[~is_forced[order]]
    total = int(counts.sum())
    if size is None:
        covered = counts[forced].sum() + counts[rest].cumsum(0)
        # as many as reach the coverage, without tokens that never occur
        wanted = int((covered < coverage * total).sum()) + 1
        size = len(forced) + min(wanted, int((counts[rest] > 0).sum()))
        if size > FULL_ABOVE * vocab:
            size = vocab
    ids = torch.cat((forced, rest[: size - len(forced)])).sort().values
    return ids, int(counts[ids].sum()) / max(1, total)
