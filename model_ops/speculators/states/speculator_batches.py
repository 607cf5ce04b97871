"""Batches for training a drafter, answers of similar length with their hidden states, and the draft vocabulary. The rows of a
step are a function of (seed, step); processes share them by their tokens, and one with fewer micro-batches also computes some
without targets."""

import random
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from model_ops.documents import share
from model_ops.jobs import filled
from model_ops.models import end_of_text_ids
from model_ops.speculators.draft_model import DocumentWindows
from model_ops.speculators.settings import SpeculatorSettings
from model_ops.speculators.states.hidden_states import AnswerRow, HiddenStates, OnlineStates
from model_ops.tensors import IGNORED, Batch

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
    """(ids ascending, share of counted tokens they cover). counts: number of occurrences of each token in answers. always:
    ids that must be included (special tokens, eos ids). size: number of ids, the most frequent first, then the lowest unused
    ones; None: the smallest set that reaches `coverage`. Raises ValueError if `size` cannot hold `always` or exceeds the
    vocabulary."""
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


StateSource = HiddenStates | OnlineStates

MICRO_BATCH_TOKENS = 8_192
"""Default of settings.micro_batch_tokens, in padded tokens; a longer document is a micro-batch of its own."""

DRAFT_WEIGHT = 3
"""Activation memory of a drafted position relative to a token of a prompt, which saves only keys and values."""

PADDING_ALLOWED = 1.5
"""Largest ratio of the longest to the shortest document of a micro-batch."""


@dataclass(frozen=True, kw_only=True)
class DraftBatch(Batch):
    """Padded documents with the inputs of drafter and teacher. A document's window, `windows` positions from `start`, is
    supervised."""

    ids: Int[Tensor, "documents longest"]
    captured: Float[Tensor, "documents longest captured_hidden"]
    """The target's hidden states that the drafter reads."""
    start: Int[Tensor, " documents"]
    windows: Int[Tensor, " documents"]
    last: Float[Tensor, "entries hidden"]
    """The teacher's states of all windows, concatenated."""
    order: Int[Tensor, " entries"]
    """A random rank of each entry of `last`."""
    on_host: tuple[list[int], list[int]]
    """`start` and `windows` again: asking an accelerator for them would wait for it."""


class SpeculatorPlan:
    """A `model_ops.tensors.batch.BatchSource` of answers with their hidden states. settings: resolved."""

    def __init__(self, rows: Sequence[AnswerRow], states: StateSource, settings: SpeculatorSettings):
        self.rows, self.states, self.seed = rows, states, settings.seed
        self.steps = plan_steps([len(row.ids) for row in rows], settings)
        self.micro_batch_tokens = settings.micro_batch_tokens or MICRO_BATCH_TOKENS
        self.anchors, self.drafts = settings.positions_per_answer, filled(settings.ttt_steps)

    def __len__(self) -> int:
        return len(self.steps)

    def step(self, index: int, rank: int = 0, ranks: int = 1) -> list[Batch]:
        """This rank's rows of step `index`; see BatchSource."""
        shares = self._groups(index, ranks)
        batches: list[Batch] = [
            make_batch(self.rows, self.states, group, (self.seed, index, number * ranks + rank))
            for number, group in enumerate(shares[rank])
        ]
        missing = max(map(len, shares)) - len(batches)
        return batches + [self._silent(index)] * missing if missing else batches

    def heaviest(self, rank: int = 0, ranks: int = 1) -> DraftBatch:
        """This rank's micro-batch with the highest estimated memory, by padded tokens and, with more weight, drafted positions;
        ties go to the longest documents."""
        groups = [group for index in range(len(self.steps)) for group in self._groups(index, ranks)[rank]]
        if not groups:
            return self._silent(0)

        def weight(group: list[int]) -> tuple[float, int]:
            longest = max(len(self.rows[row].ids) for row in group)
            positions = sum(min(self.rows[row].window, self.anchors or self.rows[row].window) for row in group)
            return longest * len(group) + DRAFT_WEIGHT * self.drafts * positions, longest

        return make_batch(self.rows, self.states, max(groups, key=weight), (self.seed, 0, 0))

    def _groups(self, index: int, ranks: int) -> list[list[list[int]]]:
        """Rows of a step by rank and micro-batch, sorted by length."""
        lengths = {row: len(self.rows[row].ids) for row in self.steps[index]}
        return [
            micro_batches(self.rows, sorted(mine, key=lambda row: (lengths[row], row)), self.micro_batch_tokens) if mine else []
            for mine in share(self.steps[index], lengths, ranks)
        ]

    def _silent(self, index: int) -> DraftBatch:
        """The step's shortest row without targets, for a rank with fewer micro-batches than others."""
        shortest = min(self.steps[index], key=lambda row: len(self.rows[row].ids))
        batch = make_batch(self.rows, self.states, [shortest])
        return replace(batch, weights=torch.zeros_like(batch.weights), row_ids=[])


def plan_steps(lengths: Sequence[int], settings: SpeculatorSettings) -> list[list[int]]:
    """The rows of each optimizer step: `steps` steps if it is set, else `epochs` passes. A last step that is less than half
    full is merged into the previous one."""
    wanted = settings.steps
    budget = filled(settings.tokens_per_step)
    total_tokens = None if wanted is not None else filled(settings.epochs) * sum(lengths)
    steps: list[list[int]] = [[]]
    held = seen = epoch = 0
    while lengths:
        order = list(range(len(lengths)))
        random.Random(settings.seed * 1_000_003 + epoch).shuffle(order)
        for row in order:
            if held >= budget:
                if wanted is not None and len(steps) == wanted:
                    return steps
                steps.append([])
                held = 0
            if total_tokens is not None and seen >= total_tokens:
                if len(steps) > 1 and held < budget / 2:
                    steps[-2].extend(steps.pop())
                return steps
            steps[-1].append(row)
            held += lengths[row]
            seen += lengths[row]
        epoch += 1
    return []


def micro_batches(rows: Sequence[AnswerRow], members: list[int], limit: int = MICRO_BATCH_TOKENS) -> list[list[int]]:
    """Splits members (sorted by length) into groups of similar length with at most `limit` padded tokens."""
    groups: list[list[int]] = [[]]
    for row in members:
        length, shortest = len(rows[row].ids), len(rows[groups[-1][0]].ids) if groups[-1] else 0
        too_big = length * (len(groups[-1]) + 1) > limit
        if groups[-1] and (too_big or length > PADDING_ALLOWED * shortest):
            groups.append([])
        groups[-1].append(row)
    return groups


def make_batch(
    rows: Sequence[AnswerRow], states: StateSource, members: list[int], drawn_by: tuple[int, int, int] = (0, 0, 0)
) -> DraftBatch:
    """One micro-batch. drawn_by: seed of its `order`, (seed, step, number of the micro-batch)."""
    chosen = [rows[row] for row in members]
    longest = max(len(row.ids) for row in chosen)
    of_members = states.of(members)
    ids = torch.zeros(len(chosen), longest, dtype=torch.int64)
    # states that were computed for this batch are on the target's device and stay there
    captured = of_members[0][0].new_zeros(len(chosen), longest, of_members[0][0].shape[-1])
    labels = torch.full((len(chosen), longest), IGNORED)
    for place, (row, (row_captured, _)) in enumerate(zip(chosen, of_members, strict=True)):
        tokens = torch.tensor(row.ids)
        ids[place, : len(tokens)] = tokens
        captured[place, : len(tokens)] = row_captured
        labels[place, row.start + 1 : row.start + 1 + row.window] = tokens[row.start + 2 :]
    return DraftBatch(
        input_ids=ids.flatten(),
        position_ids=torch.arange(longest).repeat(len(chosen)),
        labels=labels.flatten(),
        weights=(labels != IGNORED).flatten().float(),
        document_lengths=[longest] * len(chosen),
        row_ids=[row.row_id for row in chosen],
        ids=ids,
        captured=captured,
        start=torch.tensor([row.start for row in chosen]),
        windows=torch.tensor([row.window for row in chosen]),
        last=torch.cat([last[1:] for _, last in of_members]),
        order=_random_order(sum(row.window for row in chosen), drawn_by),
        on_host=([row.start for row in chosen], [row.window for row in chosen]),
    )


def _random_order(entries: int, drawn_by: tuple[int, int, int]) -> Tensor:
    generator = torch.Generator().manual_seed(random.Random(repr(drawn_by)).getrandbits(63))
    return torch.randperm(entries, generator=generator)


def documents_of(batch: DraftBatch) -> DocumentWindows:
    """The batch as Documents for the training forward."""
    widest = max(batch.on_host[1])
    return DocumentWindows(batch.ids, batch.captured, batch.start, widest, batch.windows, on_host=batch.on_host)


def chosen_anchors(windows: Tensor, order: Tensor, count: int) -> Tensor:
    """Mask of the entries of each window at which a block begins: the `count` entries with the lowest random rank `order`, or
    all of a shorter window. [documents, longest window], bool"""
    marked = torch.zeros(len(windows), int(windows.max()), dtype=torch.bool, device=windows.device)
    for document, ranks in enumerate(order.split(windows.tolist())):
        marked[document, ranks.argsort()[:count]] = True
    return marked


def supervised(windows: Tensor, step: int, anchors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Entries with a teacher at step k: (index in the padded [documents * longest window] layout, index of the teacher's row).
    anchors [documents, longest window]: mask of entries to use; None: all. At step k, index a of a window predicts the same
    token as index a + k at step 0, so it has the teacher of index a + k."""
    longest = int(windows.max())
    within = torch.arange(longest, device=windows.device)
    exists = within + step < windows[:, None]
    if anchors is not None:
        exists &= anchors
    offsets = windows.cumsum(0) - windows
    teacher = offsets[:, None] + within + step
    return exists.flatten().nonzero().squeeze(1), teacher[exists]
