"""Decoder layers of drafters, and the interface of drafters that repeat them on their own output: EAGLE-3 and MTP.

hidden = model.fuse(captured)                                   # step 0 reads the target's hidden states
hidden = model.fed_back(hidden)                                 # later steps read the output of the step before
for layer in model.body:                                        # each a `BodyLayer`
    x = layer.reads(hidden, embedding)                          # input of attention's projections
    hidden = layer.finish(hidden, attended)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from model_ops.decoding import RaggedCache, rotate
from model_ops.speculators.backbone.draft_attention import WindowLayout, draft_attention
from model_ops.speculators.decoder_config import DecoderConfig
from model_ops.speculators.draft_model import DocumentWindows, DraftModel
from model_ops.tensors import rms_norm


class Norm(nn.RMSNorm):
    """RMSNorm in float32; the output has autocast's dtype in training, otherwise the weight's dtype."""

    def forward(self, hidden: Tensor) -> Tensor:
        return rms_norm(
            hidden if torch.is_autocast_enabled(hidden.device.type) else hidden.to(self.weight.dtype), self.weight, self.eps
        )


class Attention(nn.Module):
    """The projections of attention over inputs of `width`. biased: q, k and v have biases (Qwen2). normed: queries and keys are
    normalised (Qwen3)."""

    def __init__(self, config: DecoderConfig, width: int, biased: bool = False, normed: bool = False):
        super().__init__()
        head_dim = self.head_dim = config.head_dim
        self.q_proj = nn.Linear(width, config.num_attention_heads * head_dim, bias=biased)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * head_dim, bias=biased)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * head_dim, bias=biased)
        self.o_proj = nn.Linear(config.num_attention_heads * head_dim, config.hidden_size, bias=False)
        self.normed = normed
        if normed:
            self.q_norm = Norm(head_dim, config.rms_norm_eps)
            self.k_norm = Norm(head_dim, config.rms_norm_eps)

    def query(self, x: Float[Tensor, "*tokens width"], cos: Tensor, sin: Tensor) -> Tensor:
        """[*tokens, heads, head_dim], rotated; cos and sin are [*tokens, 1, head_dim]."""
        queries = self.q_proj(x).unflatten(-1, (-1, self.head_dim))
        return rotate(self.q_norm(queries) if self.normed else queries, cos, sin)

    def key_value(self, x: Float[Tensor, "*tokens width"], cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Two of [*tokens, kv_heads, head_dim]; keys are rotated."""
        keys = self.k_proj(x).unflatten(-1, (-1, self.head_dim))
        keys = rotate(self.k_norm(keys) if self.normed else keys, cos, sin)
        return keys, self.v_proj(x).unflatten(-1, (-1, self.head_dim))


class Mlp(nn.Module):
    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(hidden)) * self.up_proj(hidden))


class BodyLayer(nn.Module, ABC):
    """A layer of a drafter's body. self_attn: computes queries, keys and values from the result of `reads`."""

    self_attn: nn.Module
    post_attention_layernorm: Norm
    mlp: Mlp

    @abstractmethod
    def reads(
        self, hidden: Float[Tensor, "*tokens hidden"], embedding: Float[Tensor, "*tokens hidden"]
    ) -> Float[Tensor, "*tokens width"]:
        """The input of attention."""

    def residual(self, hidden: Float[Tensor, "*tokens hidden"], x: Float[Tensor, "*tokens width"]) -> Tensor:
        """The tensor that attention's output is added to: by default the layer's input."""
        return hidden

    def finish(
        self, residual: Float[Tensor, "*tokens hidden"], attended: Float[Tensor, "*tokens heads_head_dim"]
    ) -> Float[Tensor, "*tokens hidden"]:
        """The layer's output from its attention's."""
        hidden = residual + self.self_attn.o_proj(attended)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class DraftLayer(BodyLayer):
    """A Llama decoder layer, or with `normed` a Qwen3 one; the first one also reads the embedding."""

    def __init__(self, config: DecoderConfig, first: bool, normed: bool = False):
        super().__init__()
        self.first = first
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        if first:
            self.hidden_norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, (1 + first) * config.hidden_size, normed=normed)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def reads(
        self, hidden: Float[Tensor, "*tokens hidden"], embedding: Float[Tensor, "*tokens hidden"]
    ) -> Float[Tensor, "*tokens width"]:
        """The input of attention's projections; width is 2 * hidden in the first layer."""
        if not self.first:
            return self.input_layernorm(hidden)
        return torch.cat((self.input_layernorm(embedding), self.hidden_norm(hidden)), dim=-1)

    def warm_start(self) -> None:
        """Initialises random projections with small outputs, so that the layer begins close to the identity."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim == 2:
                    nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
                if name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
                    parameter *= 0.1


def new_cache(config: DecoderConfig, projection: nn.Linear, rows: int) -> RaggedCache:
    """An empty cache of a drafter's layers, with the device and dtype of one of its projections."""
    weight = projection.weight
    return RaggedCache(config.num_layers, rows, config.num_key_value_heads, config.head_dim, weight.dtype, weight.device)


class RepeatedBody(DraftModel):
    """A drafter whose layers ("body") are run once for each draft. rotary: transformers' rotary embedding for its positions
    norm, lm_head: final norm and output matrix fc: the first projection of its inputs; its dtype is the module's"""

    config: Any  # of its own kind, with num_layers, num_key_value_heads and head_dim
    rotary: nn.Module
    norm: nn.Module
    lm_head: nn.Linear
    fc: nn.Linear

    @property
    @abstractmethod
    def body(self) -> Sequence[BodyLayer]:
        """The layers, first to last."""

    @abstractmethod
    def fuse(self, captured: Float[Tensor, "*tokens features"]) -> Float[Tensor, "*tokens hidden"]:
        """The first layer's `hidden` from the target's hidden states."""

    @abstractmethod
    def fed_back(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens hidden"]:
        """The next draft step's `hidden` from the last layer's output."""

    @abstractmethod
    def embed(self, tokens: Int[Tensor, "*tokens"], positions: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens hidden"]:
        """The first layer's embedding of tokens (ids of the target) at these rotary positions."""

    def logits(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens draft_vocab"]:
        """Logits over the draft vocabulary, float32."""
        return self.lm_head(self.norm(hidden)).float()

    def scored(
        self, hidden: Float[Tensor, "*rows hidden"], step: int
    ) -> tuple[Float[Tensor, "*rows hidden"], Float[Tensor, "draft_vocab hidden"]]:
        return self.norm(hidden), self.lm_head.weight


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
