"""Training-time test of EAGLE-3: several draft steps in training, each reading the layer's own output.

    hidden = unroll(drafter, batch_of_documents, steps=4)         # one [documents, window, hidden] per step

Step k at index j reads the true token x[j+1+k] and the body's own output of step k-1 at j (not detached), has rotary position
j + k, and predicts x[j+2+k]. It attends to every step-0 entry i <= j of its document and to one entry of each later step, its
own at j: the sequence of a server after k drafts (arXiv 2503.01840, section 3.2). In the last layer, entries of the prompt only
give keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from model_ops.speculators.backbone.draft_attention import WindowLayout, draft_attention
from model_ops.speculators.backbone.draft_layers import RepeatedBody
from model_ops.speculators.draft_model import DocumentWindows


def unroll(model: RepeatedBody, documents: DocumentWindows, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
    """Outputs of the layers (before the final norm) for every step, inside the window; zeros after a window's end."""
    lines = Lines.of(documents)
    cos, sin = lines.rotary(model, steps)
    output, streams = first_step(model, lines, cos, sin)
    outputs = [output]
    later: list[list[tuple[Tensor, Tensor]]] = [[] for _ in streams]
    for step in range(1, steps):
        hidden, moved = model.fed_back(outputs[-1]), lines.index + step
        embedding = lines.following(model, lines.of_query, step)
        for layer, (keys, values), own in zip(model.body, streams, later, strict=True):
            x = layer.reads(hidden, embedding)
            own.append(layer.self_attn.key_value(x, cos[moved], sin[moved]))
            query = layer.self_attn.query(x, cos[moved], sin[moved])
            attended = draft_attention(query, keys, values, own, lines.layout).flatten(1)
            hidden = layer.finish(layer.residual(hidden, x), attended)
        outputs.append(hidden)
    return [lines.padded(output) for output in outputs]


@dataclass(frozen=True)
class Lines:
    """Concatenated documents, each up to its window's end. row, place: of every step-0 entry. of_query: indices of the entries
    in a window. index: their j."""

    documents: DocumentWindows
    layout: WindowLayout
    row: Int[Tensor, " entries"]
    place: Int[Tensor, " entries"]
    of_query: Int[Tensor, " queries"]

    @classmethod
    def of(cls, documents: DocumentWindows) -> Lines:
        if documents.on_host is not None:
            before, windows = documents.on_host
        elif documents.windows is not None:
            before, windows = documents.start.tolist(), documents.windows.tolist()
        else:
            before = documents.start.tolist()
            windows = [min(documents.window, documents.ids.shape[1] - first) for first in before]
        layout = WindowLayout.of(before, windows, documents.ids.device)
        row, place = layout.keys()
        return cls(documents, layout, row, place, layout.queries_among_keys())

    @property
    def index(self) -> Int[Tensor, " queries"]:
        return self.place[self.of_query]

    def whole(self) -> WindowLayout:
        """The layout in which every entry is a query."""
        layout = self.layout
        lengths = [first + window for first, window in zip(layout.before, layout.windows, strict=True)]
        return WindowLayout.of([0] * len(lengths), lengths, layout.device)

    def rotary(self, model: RepeatedBody, steps: int) -> tuple[Tensor, Tensor]:
        """cos and sin of every position, [positions, 1, head_dim]."""
        device = self.row.device
        places = torch.arange(self.documents.ids.shape[1] + steps, device=device)[None]
        dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else model.fc.weight.dtype
        return tuple(table[0].to(dtype)[:, None] for table in model.rotary(torch.empty(0, device=device), places))

    def following(self, model: RepeatedBody, entries: Tensor, step: int) -> Float[Tensor, "entries hidden"]:
        """Embeddings of x[j+1+step] at the given entries."""
        tokens = self.documents.ids
        at = (self.place[entries] + 1 + step).clamp(max=tokens.shape[1] - 1)
        return model.embed(tokens[self.row[entries], at], self.place[entries] + step)

    def padded(self, output: Float[Tensor, "queries hidden"]) -> Float[Tensor, "rows window hidden"]:
        """Scatters outputs of the windows' entries into [documents, window, hidden]; zeros elsewhere."""
        rows, window, row = self.documents.ids.shape[0], self.documents.window, self.row[self.of_query]
        where = row * window + self.index - self.documents.start[row]
        return output.new_zeros(rows * window, output.shape[-1]).index_copy(0, where, output).view(rows, window, -1)


def first_step(
    model: RepeatedBody, lines: Lines, cos: Tensor, sin: Tensor
) -> tuple[Float[Tensor, "queries hidden"], list[tuple[Tensor, Tensor]]]:
    """Step 0, from the target's states: outputs of the body inside the windows, and each layer's keys and values of all
    entries. Layers before the last are computed at every entry, because the next layer's keys need their outputs."""
    of_key = lines.row * lines.documents.ids.shape[1] + lines.place  # index in the padded documents
    hidden = model.fuse(lines.documents.captured.flatten(0, 1)[of_key].to(model.fc.weight.dtype))
    embedding = lines.following(model, torch.arange(len(lines.row), device=lines.row.device), 0)
    streams = []
    for number, layer in enumerate(model.body, 1):
        x = layer.reads(hidden, embedding)
        keys, values = layer.self_attn.key_value(x, cos[lines.place], sin[lines.place])
        layout, index = (lines.layout, lines.index) if number == len(model.body) else (lines.whole(), lines.place)
        if number == len(model.body):
            x, hidden = x[lines.of_query], hidden[lines.of_query]
        attended = draft_attention(layer.self_attn.query(x, cos[index], sin[index]), keys, values, [], layout)
        hidden = layer.finish(layer.residual(hidden, x), attended.flatten(1))
        streams.append((keys, values))
    return hidden, streams
