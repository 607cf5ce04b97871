"""A teacher's next-token distribution, spelt in the tokens of a student with another tokenizer.

    spelling = Spelling.of(student_tokenizer, teacher_tokenizer, paired, sizes)    # paired: model_ops.objectives.paired_chats
    places = spelling.places(student_ids, teacher_ids, groups)                     # where a distribution can be spelt
    target = spelling.spelt(p, places, q)                                          # [places, vocab of the student]

Groups (model_ops.objectives.paired_chats) begin at the same byte in both tokenisations. There the teacher says with which of
its tokens t the text goes on, with probability p(t), and the student with which of its tokens v, with q(v). B(v, t): of the
training rows' groups that begin with v, the share that begin with t; how the student's tokenizer writes t alone counts as one
more. So the student gives t the probability sum_v q(v) B(v, t), and the divergence of these from p is what it learns:

    - sum_t p(t) log sum_v q(v) B(v, t)

Its gradient is that of ordinary distillation from the distribution

    P(v) = sum_t p(t) r(v | t),    r(v | t) = q(v) B(v, t) / sum_w q(w) B(w, t)

with r as a constant (the E step of EM, Dempster, Laird, Rubin 1977). Where v is a part of t, or t itself, B only says which v,
and P(v) is the teacher's own. Where v is longer than t, the teacher's next tokens say which of these v it is: see
model_ops.objectives.prefix_tree. A fixed share of t for each v would teach the student to go on alike in every context.

Where the student writes one token of the teacher with several, v_1 v_2 ..., the second one has

    P(v | v_1) = sum of p(t) over all t that the student spells v_1 v ... / sum of p(t) over all t that it spells v_1 ...

and so on. Where a token of the student begins within a later token of the teacher, nothing is known. P adds up to 1, so its
divergence from the student's distribution is that of ordinary distillation, and with one tokenizer it is p itself. The
projection of NeMo-RL's X-token distillation gives each t fixed shares by the text of single tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from model_ops.objectives.paired_chats import PairedDocuments
from model_ops.objectives.prefix_tree import NOWHERE, Paths, PrefixTree, ranges
from model_ops.rendering import TokenBytes, end_of_turn_ids, matched_ids

FIRST = -1
"""Key of a place at the beginning of a group."""

Pieces = dict[int, tuple[int, ...]]
"""A token of the teacher -> the student's tokens for it."""


@dataclass(frozen=True)
class SpellingPositions:
    """Positions where the teacher's distribution can be spelt."""

    ours: Int[Tensor, " places"]
    theirs: Int[Tensor, " places"]
    """ours, theirs: positions that predict the student's token and the teacher's."""
    said: Int[Tensor, " places"]
    taught: Int[Tensor, " places"]
    """said, taught: these tokens."""
    key: Int[Tensor, " places"]
    """FIRST, or the number of what the student has said of the teacher's token."""
    paths: Paths
    """Continuations of the teacher at the beginning of a group."""

    def to(self, device: torch.device) -> SpellingPositions:
        """The places on a device."""
        return SpellingPositions(*(getattr(self, each.name).to(device) for each in fields(self)))

    def part(self, where: slice) -> SpellingPositions:
        """Some of the places."""
        return SpellingPositions(*(getattr(self, each.name)[where] for each in fields(self)[:-1]), paths=self.paths.part(where))


@dataclass(frozen=True)
class Spelling:
    """Spellings of the teacher's tokens in tokens of the student."""

    teacher: Int[Tensor, " entries"]
    """The teacher's token of each entry of B, which are the first entries of the tree."""
    tree: PrefixTree
    ends: Int[Tensor, " keys_and_one"]
    """End of each key's entries in inner_teacher (tokens spelt so) and inner_next (what follows)."""
    inner_teacher: Int[Tensor, " inner"]
    inner_next: Int[Tensor, " inner"]
    pieces: Pieces = field(repr=False)
    """See Pieces."""
    begun: dict[tuple[int, ...], int] = field(repr=False)
    """First tokens of such a spelling -> key."""

    @classmethod
    def of(
        cls, student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, paired: PairedDocuments, sizes: tuple[int, int]
    ) -> Spelling:
        """sizes: rows of both heads, the student's first. paired: the training rows."""
        ours, theirs = TokenBytes.of(student), TokenBytes.of(teacher)
        pieces = pieces_of(student, ours, theirs, sizes)
        pairs = matched_ids(ours, theirs, end_of_turn_ids(student), end_of_turn_ids(teacher))
        pieces |= {
            there: (here,)
            for here, there in zip(*pairs, strict=True)
            if there in theirs.special and here < sizes[0] and there < sizes[1]
        }
        inner: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for token, spelt in pieces.items():
            for said in range(1, len(spelt)):
                inner.setdefault(spelt[:said], []).append((token, spelt[said]))
        flat = torch.tensor([pair for pairs in inner.values() for pair in pairs], dtype=torch.int64).reshape(-1, 2)
        ends = torch.tensor([0, *(len(pairs) for pairs in inner.values())]).cumsum(0)
        first = first_tokens(pieces, paired, sizes[0])
        return cls(
            torch.from_numpy(first[0]),
            PrefixTree.of(paired, first, sizes[1]),
            ends,
            flat[:, 0],
            flat[:, 1],
            pieces,
            {begun: key for key, begun in enumerate(inner)},
        )

    def to(self, device: torch.device) -> Spelling:
        """The tables on a device."""
        return replace(
            self,
            **{name: getattr(self, name).to(device) for name in ("teacher", "tree", "ends", "inner_teacher", "inner_next")},
        )

    def places(
        self,
        ours: Int[np.ndarray, " tokens"],
        theirs: Int[np.ndarray, " teacher_tokens"],
        groups: Int[np.ndarray, "groups 4"],
        ends: Int[np.ndarray, " groups"],
    ) -> SpellingPositions:
        """groups: positions that predict the first and the last token of a group, the student's and the teacher's. ends: where
        the teacher's document of each group ends."""
        at, there = groups[:, 0], groups[:, 2]
        found = [np.stack([at, there, ours[at + 1], theirs[there + 1], np.full(len(groups), FIRST)], axis=1)]
        paths = self.tree.walk(theirs[there + 1], theirs, there, ends)
        inner = []
        for first, last, taught_at in groups[groups[:, 1] > at, :3].tolist():
            tokens, taught = tuple(ours[first + 1 : last + 2].tolist()), int(theirs[taught_at + 1])
            spelt = self.pieces.get(taught, ())
            for said in range(1, min(len(tokens), len(spelt))):
                if spelt[:said] != tokens[:said]:
                    break
                inner.append((first + said, taught_at, tokens[said], taught, self.begun[tokens[:said]]))
        found.append(np.array(inner, np.int64).reshape(-1, 5))
        last = torch.cat((paths.last, torch.full((len(inner),), NOWHERE)))
        return SpellingPositions(*torch.from_numpy(np.concatenate(found).T.copy()).unbind(), paths=replace(paths, last=last))

    def spelt(
        self, p: Float[Tensor, "places teacher_vocab"], places: SpellingPositions, q: Float[Tensor, "places vocab"]
    ) -> Float[Tensor, "places vocab"]:
        """The student's next token by the teacher's distribution p. q: the student's own distribution, which divides what the
        teacher gives a token among the ways to go on from it."""
        student = self.tree.student[: len(self.teacher)]
        begins = q[:, student] * self.tree.share[: len(self.teacher)]
        sums = torch.zeros_like(p).index_add_(1, self.teacher, begins).clamp_(min=torch.finfo(p.dtype).tiny)
        found = torch.zeros_like(q).index_add_(1, student, begins.mul_((p / sums)[:, self.teacher]))
        inner = (places.key != FIRST).nonzero()[:, 0]
        if len(inner):
            row, entry = ranges(self.ends[places.key[inner]], self.ends[places.key[inner] + 1])
            row, token = inner[row], self.inner_teacher[entry]
            found[inner] = 0
            following = torch.where(token == places.taught[row], places.said[row], self.inner_next[entry])
            found.index_put_((row, following), p[row, token], accumulate=True)
        return found / found.sum(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)


def pieces_of(student: PreTrainedTokenizerBase, ours: TokenBytes, theirs: TokenBytes, sizes: tuple[int, int]) -> Pieces:
    """How the student's tokenizer writes each of the teacher's tokens of text; tokens that it cannot write are left out."""
    by_bytes = {
        text: token
        for token, text in sorted(ours.bytes.items(), reverse=True)
        if token not in ours.special and token < sizes[0]
    }
    wanted = {token: text for token, text in theirs.bytes.items() if token < sizes[1] and token not in theirs.special and text}
    texts = {token: decoded for token, text in wanted.items() if (decoded := _decoded(text)) is not None}
    encoded = student.backend_tokenizer.encode_batch(list(texts.values()), add_special_tokens=False)
    found = {token: tuple(encoding.ids) for token, encoding in zip(texts, encoded, strict=True)}
    for token, text in wanted.items():
        if b"".join(ours.bytes.get(piece, b"") for piece in found.get(token, ())) != text:
            found[token] = _longest_pieces(text, by_bytes)
    return {token: pieces for token, pieces in found.items() if pieces}


def _decoded(text: bytes) -> str | None:
    """None for a part of a character."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


def _longest_pieces(text: bytes, by_bytes: dict[bytes, int]) -> tuple[int, ...]:
    """The longest token first; nothing where a byte has no token."""
    longest, pieces = max(map(len, by_bytes), default=0), []
    while text:
        size = next((size for size in range(min(longest, len(text)), 0, -1) if text[:size] in by_bytes), 0)
        if not size:
            return ()
        pieces.append(by_bytes[text[:size]])
        text = text[size:]
    return tuple(pieces)


def first_tokens(pieces: Pieces, paired: PairedDocuments, vocabulary: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How often groups begin with (the teacher's token, the student's token), by the teacher's token. vocabulary: rows of the
    student's head."""
    pairs = [np.array([(token, spelt[0]) for token, spelt in pieces.items()], np.int64).reshape(-1, 2)]
    for document, groups in zip(paired.documents, paired.groups, strict=True):
        taught = [paired.of_teacher[index].input_ids[place] for index, place in groups[:, 2:4].tolist()]
        pairs.append(np.stack([np.array(taught, np.int64), document.input_ids[groups[:, 0]].astype(np.int64)], axis=1))
    codes, counts = np.unique(np.concatenate(pairs) @ np.array([vocabulary, 1]), return_counts=True)
    return codes // vocabulary, codes % vocabulary, counts
