"""The layers of EAGLE-3 as its paper draws them: what the fast ways of computing them are held against."""

import torch
import torch.nn.functional as F


def plain_body(model, embeddings, hidden, positions):
    """The body as an ordinary causal decoder over one sequence: the definition, without any shortcut."""
    config = model.config
    cos, sin = (table[0][:, None] for table in model.rotary(hidden, positions[None]))
    group = config.num_attention_heads // config.num_key_value_heads
    for number, layer in enumerate(model.body):
        x = layer.input_layernorm(embeddings if number == 0 else hidden)
        x = torch.cat((x, layer.hidden_norm(hidden)), -1) if number == 0 else x
        key, value = layer.self_attn.key_value(x, cos, sin)
        q, k, v = (
            t.transpose(0, 1)
            for t in (layer.self_attn.query(x, cos, sin), key.repeat_interleave(group, 1), value.repeat_interleave(group, 1))
        )
        attended = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0].transpose(0, 1).flatten(1)
        hidden = hidden + layer.self_attn.o_proj(attended)
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return hidden
