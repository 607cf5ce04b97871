"""The teacher's tokens that texts go on with, as a tree, and which tokens of the student these texts begin with.

    tree = PrefixTree.of(paired, entries, sizes)            # of all groups of the training rows
    paths = tree.walk(taught, theirs, there, ends)          # the way of each place down the tree
    losses = tree.going_on(log_q, log_p, paths, said, gradient)

A student's token v that is longer than the teacher's token t is spelt by what follows t, so the teacher's next distributions
speak of it, too. A node is a sequence of the teacher's tokens n = t_1 ... t_j, and

    W(n, v) = of the groups that begin with v, the share whose text goes on with n
    r(v | n) = q(v) W(n, v) / Z(n),    Z(n) = sum_v q(v) W(n, v)

With the chain rule the student's distribution over the teacher's next tokens is Z(n t) / sum_u Z(n u), and along the path of
the text it is compared with the teacher's distribution p_j after t_1 ... t_j, by forward KL:

    sum_t p_j(t) log (p_j(t) sum_u Z(n u) / Z(n t))

What p_j gives to tokens that no group goes on with counts for the token that the text goes on with. Where the path ends, the
label decides between the tokens that are left: -log r(v | n). Nodes whose groups all begin with one token of the student have
no children, so with one tokenizer there is nothing to compare.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from model_ops.objectives.paired_chats import PairedDocuments

DEEPEST = 8
"""Most tokens of the teacher in a node."""
NOWHERE = -1
"""Last node of a place that has no path."""


@dataclass(frozen=True)
class Paths:
    """The ways of places down a tree. last: the node where a place's way ends, or NOWHERE. Of each step, by place: place: its
    number; theirs: the teacher's position whose distribution says how it goes on; node, child: from where to where."""

    last: Int[Tensor, " places"]
    place: Int[Tensor, " steps"]
    theirs: Int[Tensor, " steps"]
    node: Int[Tensor, " steps"]
    child: Int[Tensor, " steps"]

    def to(self, device: torch.device) -> Paths:
        """The paths on a device."""
        return Paths(*(getattr(self, each.name).to(device) for each in fields(self)))

    def part(self, where: slice) -> Paths:
        """The paths of some of the places, which count from 0."""
        start, stop, _ = where.indices(len(self.last))
        begin, end = torch.searchsorted(self.place, torch.tensor([start, stop], device=self.place.device)).tolist()
        return Paths(
            self.last[where],
            self.place[begin:end] - start,
            *(getattr(self, name)[begin:end] for name in ("theirs", "node", "child")),
        )


@dataclass(frozen=True)
class PrefixTree:
    """Prefixes of tokens. A node of one token has the token's own number. The children of node n, each with the token that
    leads to it, are children[child_ends[n]:child_ends[n + 1]]."""

    student: Int[Tensor, " entries"]
    share: Float[Tensor, " entries"]
    ends: Int[Tensor, " nodes_and_one"]
    child_token: Int[Tensor, " children"]
    child_node: Int[Tensor, " children"]
    child_ends: Int[Tensor, " nodes_and_one"]
    codes: Int[np.ndarray, " children"]
    """Node and token of each child as one number, ascending."""
    vocabulary: int
    """Rows of the teacher's head."""

    @classmethod
    def of(cls, paired: PairedDocuments, first: tuple[Int[np.ndarray, " entries"], ...], vocabulary: int) -> PrefixTree:
        """first: entries of nodes of one token: the teacher's token, ascending, the student's, and how often. vocabulary: rows
        of the teacher's head."""
        said, at, ends, ids = _group_starts(paired)
        of_student = np.bincount(first[1], first[2])
        entries, children = [first], []
        node, nodes = ids[at].astype(np.int64), vocabulary
        for depth in range(1, DEEPEST):
            several = np.bincount(entries[-1][0], minlength=nodes) > 1
            going = several[node] & (at + depth < ends)
            said, at, ends, node = (each[going] for each in (said, at, ends, node))
            if not len(node):
                break
            codes, child = np.unique(node * vocabulary + ids[at + depth], return_inverse=True)
            children.append((codes, np.arange(nodes, nodes + len(codes))))
            node, nodes = child + nodes, nodes + len(codes)
            entries.append(_counted(node, said, len(of_student)))
        of_node, student, count = (np.concatenate(parts) for parts in zip(*entries, strict=True))
        codes, child = (np.concatenate(parts) for parts in zip(*(children or [(np.zeros(0, np.int64),) * 2]), strict=True))
        bounds, share = np.arange(nodes + 1), (count / of_student[student]).astype(np.float32)
        return cls(
            *map(
                torch.from_numpy,
                (
                    student,
                    share,
                    np.searchsorted(of_node, bounds),
                    codes % vocabulary,
                    child,
                    np.searchsorted(codes // vocabulary, bounds),
                ),
            ),
            codes=codes,
            vocabulary=vocabulary,
        )

    def to(self, device: torch.device) -> PrefixTree:
        """The tree on a device."""
        return replace(
            self,
            **{
                each.name: getattr(self, each.name).to(device)
                for each in fields(self)
                if each.name not in ("codes", "vocabulary")
            },
        )

    def walk(
        self,
        taught: Int[np.ndarray, " places"],
        theirs: Int[np.ndarray, " tokens"],
        there: Int[np.ndarray, " places"],
        ends: Int[np.ndarray, " places"],
    ) -> Paths:
        """The paths of places where groups begin. taught: the teacher's token there. there: the position of `theirs` that
        predicts it. ends: where the teacher's document ends."""
        node, live, steps = taught.astype(np.int64), np.arange(len(taught)), []
        for depth in range(1, DEEPEST):
            live = live[there[live] + depth + 1 < ends[live]]
            codes = node[live] * self.vocabulary + theirs[there[live] + depth + 1]
            found = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
            known = self.codes[found] == codes if len(self.codes) else np.zeros(len(live), bool)
            live, child = live[known], self.child_node.numpy()[found[known]]
            if not len(live):
                break
            steps.append(np.stack([live, there[live] + depth, node[live], child]))
            node[live] = child
        taken = np.concatenate([np.zeros((4, 0), np.int64), *steps], axis=1)
        taken = taken[:, np.argsort(taken[0], kind="stable")]
        return Paths(*map(torch.from_numpy, (node, *np.ascontiguousarray(taken))))

    def going_on(
        self,
        q: Float[Tensor, "places vocab"],
        p: Float[Tensor, "steps teacher_vocab"],
        paths: Paths,
        said: Int[Tensor, " places"],
    ) -> tuple[Float[Tensor, " places"], Float[Tensor, "places vocab"]]:
        """(the loss of each place, its gradient in the student's logits). q: the student's distribution. p: the teacher's after
        each step. said: the student's token that follows."""
        losses, gradient = q.new_zeros(len(q)), torch.zeros_like(q)
        if len(paths.place):
            self._add_steps(q, p, paths, losses, gradient)
        self._add_labels(q, paths.last, said, losses, gradient)
        return losses, gradient

    def _add_steps(self, q: Tensor, p: Tensor, paths: Paths, losses: Tensor, gradient: Tensor) -> None:
        step, child = ranges(self.child_ends[paths.node], self.child_ends[paths.node + 1])
        node = self.child_node[child]
        way, entry = ranges(self.ends[node], self.ends[node + 1])
        row, student = paths.place[step[way]], self.student[entry]
        mass = q[row, student] * self.share[entry]
        tiny = torch.finfo(q.dtype).tiny
        z = q.new_zeros(len(node)).index_add_(0, way, mass).clamp_(min=tiny)
        whole = q.new_zeros(len(p)).index_add_(0, step, z)
        taught = p[step, self.child_token[child]]
        unknown = 1 - p.new_zeros(len(p)).index_add_(0, step, taught)
        taught = taught + torch.where(node == paths.child[step], unknown[step], 0.0).clamp_(min=0)
        of_way = taught * (taught.clamp(min=tiny).log() - (z / whole[step]).log())
        losses.index_add_(0, paths.place[step], of_way)
        gradient.index_put_((row, student), mass * (1 / whole[step] - taught / z)[way], accumulate=True)

    def _add_labels(self, q: Tensor, last: Tensor, said: Tensor, losses: Tensor, gradient: Tensor) -> None:
        place = (last != NOWHERE).nonzero()[:, 0]
        at, entry = ranges(self.ends[last[place]], self.ends[last[place] + 1])
        row, student = place[at], self.student[entry]
        mass = q[row, student] * self.share[entry]
        z = q.new_zeros(len(q)).index_add_(0, row, mass).clamp_(min=torch.finfo(q.dtype).tiny)
        own = q.new_zeros(len(q)).index_add_(0, row, torch.where(student == said[row], mass, 0.0))
        known = own > 0  # the label is among the tokens that are left
        losses += torch.where(known, z / own.clamp(min=torch.finfo(q.dtype).tiny), 1.0).log_()
        gradient.index_put_((row, student), mass / z[row] * known[row], accumulate=True)
        rows = known.nonzero()[:, 0]
        gradient[rows, said[rows]] -= 1


def ranges(begins: Int[Tensor, " rows"], ends: Int[Tensor, " rows"]) -> tuple[Tensor, Tensor]:
    """(row, place) of every place of ranges [begin, end)."""
    counts = ends - begins
    row = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    before = counts.cumsum(0) - counts
    return row, torch.arange(len(row), device=row.device) + (begins - before)[row]


def _group_starts(paired: PairedDocuments) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For every group: the student's first token, the place of the teacher's in all the teacher's tokens, where its document
    ends; and all the teacher's tokens."""
    lengths = np.cumsum([0, *map(len, paired.of_teacher)])
    groups = [group.astype(np.int64) for group in paired.groups]
    said = [document.input_ids[group[:, 0]].astype(np.int64) for document, group in zip(paired.documents, groups, strict=True)]
    joined = np.concatenate([np.zeros((0, 5), np.int64), *groups])
    ids = np.concatenate([np.zeros(0, np.int32), *(document.input_ids for document in paired.of_teacher)])
    return (
        np.concatenate([np.zeros(0, np.int64), *said]),
        joined[:, 3] + lengths[joined[:, 2]],
        lengths[joined[:, 2] + 1],
        ids,
    )


def _counted(node: np.ndarray, said: np.ndarray, students: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(node, the student's token, how often) of pairs, by node."""
    pairs, counts = np.unique(node * students + said, return_counts=True)
    return pairs // students, pairs % students, counts
