"""Decoding with EAGLE-3 or an MTP layer: a chain of drafts with its own ragged KV cache.

    drafter = load_draft_model(directory).drafter()
    decode(runner, prompts, ..., drafter=drafter, num_speculative_tokens=3)

Only cache entries from the target's own states stay visible. Later drafts of a round append entries from the body's own output;
after verification, entries from the target's new states overwrite them.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from model_ops.decoding import DraftChain, Proposal, RotaryTable
from model_ops.speculators.backbone.draft_layers import RepeatedBody, new_cache


class Eagle3Drafter:
    """A `model_ops.decoding.drafters.Drafter` that proposes its argmax at temperature 0 and samples at other temperatures.

    greedy: propose the argmax at any temperature.
    """

    def __init__(self, model: RepeatedBody, greedy: bool = False):
        self.model, self.greedy = model, greedy
        self.capture = model.capture
        self.target_ids = model.target_ids
        self.rotary = RotaryTable(model.rotary, model.fc.weight.dtype)
        self.cache = new_cache(model.config, model.fc, 0)
        self.hidden = torch.empty(0, model.config.hidden_size)
        """The body's output at each row's latest entry, from which the next draft is computed. [rows, hidden]"""

    @torch.no_grad()
    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        first: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens features"] | None,
    ) -> None:
        device, longest = first.device, max(map(len, prompts))
        self.cache = new_cache(self.model.config, self.model.fc, len(prompts))
        # index j reads token j + 1; the last index of the prompt reads the first token of the answer
        following = torch.tensor(
            [
                [*prompt[1:], token, *[0] * (longest - len(prompt))]
                for prompt, token in zip(prompts, first.tolist(), strict=True)
            ],
            device=device,
        )
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self._extend(following, lengths, captured)

    @torch.no_grad()
    def propose(self, count: int, temperature: float, uniforms: Float32[Tensor, "rows drafts"]) -> Proposal:
        hidden, lengths, chain = self.hidden, self.cache.lengths, DraftChain(temperature, uniforms, self.greedy)
        for step in range(count):
            index = chain.add(self.model.logits(hidden))
            if step + 1 < count:
                embedding = self.model.embed(self.target_ids[index][:, None], self.cache.positions(1))
                hidden = self._body(self.model.fed_back(hidden)[:, None], embedding)[:, 0]
                self.cache.advance(1)
        self.cache.lengths = lengths
        return chain.proposal(self.target_ids)

    @torch.no_grad()
    def advance(
        self,
        emitted: Int[Tensor, "rows tokens"],
        counts: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens features"] | None,
    ) -> None:
        self._extend(emitted, counts, captured)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        self.cache.keep(rows)
        self.hidden = self.hidden[rows]

    def _extend(self, following: Tensor, counts: Tensor, captured: Tensor | None) -> None:
        """Adds cache entries from the target's states; the first counts[row] of each row are valid."""
        if captured is None:
            raise ValueError(f"{type(self.model).__name__} drafts from the target's hidden states, and none are given")
        embedding = self.model.embed(following, self.cache.positions(following.shape[1]))
        hidden = self._body(self.model.fuse(captured.to(self.model.fc.weight.dtype)), embedding)
        self.cache.lengths = self.cache.lengths + counts
        self.hidden = hidden[torch.arange(len(counts), device=counts.device), counts - 1]

    def _body(
        self, hidden: Float[Tensor, "rows entries hidden"], embedding: Float[Tensor, "rows entries hidden"]
    ) -> Float[Tensor, "rows entries hidden"]:
        """One pass over the next entries of every row."""
        entries = hidden.shape[1]
        self.cache.reserve(entries)
        positions = self.cache.positions(entries)
        cos, sin = self.rotary.at(positions, self.cache.longest + entries)
        for number, layer in enumerate(self.model.body):
            x = layer.reads(hidden, embedding)
            key, value = layer.self_attn.key_value(x, cos, sin)
            attended = self.cache.attend(number, layer.self_attn.query(x, cos, sin), key, value, positions)
            hidden = layer.finish(layer.residual(hidden, x), attended)
        return hidden
