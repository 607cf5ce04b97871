"""The training-time test of EAGLE-3: several draft steps in training, each fed the layer's own output.

    hidden = unroll(drafter, batch_of_documents, steps=4)         # one [documents, window, hidden] per step

Step k at index j is fed the true token x[j+1+k] and the layer's own output of step k-1 at j (not detached), stands at
rotary position j + k, and predicts x[j+2+k]. It attends to every step-0 entry i <= j of its document and to exactly
one entry of each later step, its own at j: the sequence a server sees after k drafts (arXiv 2503.01840, section 3.2).

Only the window of an answer needs outputs: entries of the prompt give keys and values and nothing else, so queries, MLP
and logits are computed inside the window alone. Documents lie end to end while they are computed: their padding costs
nothing. Memory of attention is linear in document length (`model_ops.speculators.draft_attention`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from model_ops.speculators.draft_attention import WindowLayout, draft_attention

if TYPE_CHECKING:
    from model_ops.speculators.eagle3 import Eagle3

@dataclass(frozen=True)
class Documents:
    """Documents padded on the right to one length, and the window of each that is supervised at step 0.

    ids: tokens x[0..]; captured: the target's boundary states; start: index j of each window's first entry;
    window: entries in the longest window; final: the target's state after its final norm at every entry; windows: entries
    of each window (None: all are the longest). A window's entry a stands at j = start + a.
    """

    ids: Int[Tensor, "documents tokens"]
    captured: Float[Tensor, "documents tokens captured*hidden"]
    start: Int[Tensor, " documents"]
    window: int
    final: Float[Tensor, "documents window hidden"] | None = None
    windows: Int[Tensor, " documents"] | None = None


def unroll(model: Eagle3, documents: Documents, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
    """The layer's outputs (before the final norm) of every step, inside the window; zeros after a window's end."""
    ids, attention = documents.ids, model.midlayer.self_attn
    rows, tokens = ids.shape
    before = documents.start.tolist()
    if documents.windows is None:
        windows = [min(documents.window, tokens - first) for first in before]
    else:
        windows = documents.windows.tolist()
    layout = WindowLayout.of(before, windows, ids.device)
    row, place = layout.keys()
    of_key = row * tokens + place  # in the padded documents, of every step-0 entry
    of_query = layout.queries_among_keys()
    index = place[of_query]

    def following(document: Tensor, at: Tensor) -> Tensor:
        return model.embed_tokens(ids[document, at.clamp(max=tokens - 1)])

    fused = model.fuse(documents.captured.flatten(0, 1)[of_key].to(model.fc.weight.dtype))
    places = torch.arange(tokens + steps, device=ids.device)[None]
    cos, sin = (table[0].to(fused.dtype)[:, None] for table in model.rotary(fused.float(), places))
    x = model.attention_input(following(row, place + 1), fused)
    keys, values = attention.key_value(x, cos[place], sin[place])
    query = attention.query(x[of_query], cos[index], sin[index])
    attended = draft_attention(query, keys, values, [], layout).flatten(1)
    outputs, later = [model.finish(fused[of_query], attended)], []
    for step in range(1, steps):
        hidden = model.fed_back(outputs[-1])
        x = model.attention_input(following(row[of_query], index + 1 + step), hidden)
        moved = index + step
        later.append(attention.key_value(x, cos[moved], sin[moved]))
        query = attention.query(x, cos[moved], sin[moved])
        outputs.append(model.finish(hidden, draft_attention(query, keys, values, later, layout).flatten(1)))
    padded = row[of_query] * documents.window + index - documents.start[row[of_query]]
    return [output.new_zeros(rows * documents.window, output.shape[-1]).index_copy(0, padded, output)
            .view(rows, documents.window, -1) for output in outputs]
