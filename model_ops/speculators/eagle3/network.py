"""EAGLE-3 and EAGLE-3.1 draft models (Li et al. 2025, arXiv 2503.01840). Tensor names of servers' "midlayer" layout.

The first layer reads the target's hidden states at three block boundaries (fused by `fc`) and the embedding of the next token,
and predicts the token after it. On later draft steps it reads its own output instead of the target's states:

    residual = hidden; x = concat(input_layernorm(embedding), hidden_norm(hidden))
    hidden = residual + attention(x); hidden = hidden + mlp(post_attention_layernorm(hidden))
    logits = lm_head(norm(hidden)); the next step is fed `hidden` before `norm`

Further layers are plain Llama layers before `norm`. EAGLE-3.1 normalises each state before they are fused (`fc_norm`), and
feeds `norm(hidden)` to the next step (`norm_output`); served with another flag than in training, weights draft badly without
an error. Boundary k is the INPUT of block k, as in vLLM. At index j the layer reads the embedding of x[j+1] and the states at
j, has rotary position j, and predicts x[j+2].
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from model_ops.decoding import Runner
from model_ops.jobs import ModelError
from model_ops.speculators.backbone.draft_layers import DraftLayer, Norm, RepeatedBody
from model_ops.speculators.draft_model import DocumentWindows, SaveOptions
from model_ops.speculators.draft_model_files import rotary_embedding
from model_ops.speculators.eagle3.config import CAPTURED, Eagle3Config
from model_ops.speculators.eagle3.drafter import Eagle3Drafter
from model_ops.speculators.eagle3.export import read_midlayer_config, save_eagle3
from model_ops.speculators.unrolled_draft_steps import unroll


class Eagle3(RepeatedBody):
    """The draft model. `embed_tokens` is the target's and stays frozen; `d2t` maps draft ids: target = id + d2t[id]."""

    config: Eagle3Config

    def __init__(self, config: Eagle3Config):
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.embed_tokens.weight.requires_grad_(False)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(Norm(hidden, config.rms_norm_eps) for _ in range(CAPTURED))
        self.fc = nn.Linear(CAPTURED * hidden, hidden, bias=False)
        self.midlayer = DraftLayer(config, first=True)
        if config.num_layers > 1:  # servers' names: layers.1, layers.2, ...
            self.layers = nn.ModuleDict(
                {str(number): DraftLayer(config, first=False) for number in range(1, config.num_layers)}
            )
        self.norm = Norm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.rotary = rotary_embedding(config)

    @property
    def body(self) -> list[DraftLayer]:
        return [self.midlayer, *(self.layers.values() if self.config.num_layers > 1 else ())]

    @property
    def capture(self) -> tuple[int, ...]:
        return tuple(self.config.layer_ids)

    def begun_from(self, target: Runner, target_ids: Int[Tensor, " draft_vocab"]) -> Self:
        """Sets the draft vocabulary and initialises weights from the target; returns self."""
        self.set_draft_vocabulary(target_ids)
        self.warm_start(target.embedding.float(), target.head.weight.float(), target.final_norm.float())
        return self

    @property
    def target_ids(self) -> Int[Tensor, " draft_vocab"]:
        """The target's id of every draft id."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def set_draft_vocabulary(self, target_ids: Int[Tensor, " draft_vocab"]) -> None:
        """Sets the draft vocabulary. Raises ValueError if the ids are not ascending and distinct."""
        if len(target_ids) != self.config.draft_vocab_size or (target_ids.diff() <= 0).any():
            raise ValueError("the draft vocabulary must have draft_vocab_size ascending, distinct ids")
        self.d2t.copy_(target_ids - torch.arange(len(target_ids)))
        self.t2d.zero_()
        self.t2d[target_ids] = True

    def warm_start(
        self,
        embedding: Float[Tensor, "vocab hidden"],
        head: Float[Tensor, "vocab hidden"],
        final_norm: Float[Tensor, " hidden"],
    ) -> None:
        """Copies embedding, output rows and final norm from the target, and initialises `fc` to select the deepest state."""
        with torch.no_grad():
            self.embed_tokens.weight.copy_(embedding)
            self.lm_head.weight.copy_(head[self.target_ids.to(head.device)])
            self.norm.weight.copy_(final_norm)
            hidden = self.config.hidden_size
            nn.init.normal_(self.fc.weight, std=0.02)
            self.fc.weight[:, -hidden:] += torch.eye(hidden, device=self.fc.weight.device)
        for layer in self.body:
            layer.warm_start()

    def fuse(self, captured: Float[Tensor, "*tokens captured_hidden"]) -> Float[Tensor, "*tokens hidden"]:
        if self.config.fc_norm:
            parts = captured.unflatten(-1, (CAPTURED, -1)).unbind(-2)
            captured = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(captured)

    def fed_back(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens hidden"]:
        return self.norm(hidden) if self.config.norm_output else hidden

    def embed(self, tokens: Int[Tensor, "*tokens"], positions: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens hidden"]:
        return self.embed_tokens(tokens)

    def unroll(self, documents: DocumentWindows, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
        return unroll(self, documents, steps)

    def drafter(self, greedy: bool = False) -> Eagle3Drafter:
        return Eagle3Drafter(self, greedy)

    def write(self, directory: Path, options: SaveOptions) -> None:
        save_eagle3(self.config, self.state_dict(), directory, options)

    @classmethod
    def new(cls, settings: Any, target: Runner, target_ids: Int[Tensor, " draft_vocab"]) -> Self:
        newer = settings.architecture == "eagle3.1"
        config = Eagle3Config.for_target(
            target.config, len(target_ids), num_layers=settings.num_layers, fc_norm=newer, norm_output=newer
        )
        return cls(config).to(target.device).begun_from(target, target_ids)

    @classmethod
    def from_config(cls, directory: Path, raw: dict[str, Any]) -> Eagle3:
        return cls(read_midlayer_config(directory, raw))

    def stored(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Raises ModelError for a tensor that the module does not have, since ignoring a layer or bias changes the outputs."""
        strange = sorted(name for name in weights if name not in self.state_dict() and not name.endswith(".inv_freq"))
        if strange:
            raise ModelError(f"{strange[0]} is not supported: give a head without biases, with the layers of its config")
        return weights
