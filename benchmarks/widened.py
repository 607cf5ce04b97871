"""A wide model that says what a small one says: each feature several times, after Net2Net (arXiv 1511.05641).

    widened(source, folder, hidden=6, heads=4, mlp=5)      # ../shared/models/house becomes 249M parameters

What reads a feature that now stands n times reads each copy by a random share, and the shares of one weight sum to it. Then
every matrix gets noise (NOISE of its root mean square), so that no copy equals another one: second moments have full rank, as
those of trained models do. For the layers of Qwen3 and Llama with tied or untied embeddings; the wide model's are untied.
"""

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from model_ops.models.model_directory import load_model, load_tokenizer, save_model

NOISE = 0.03


@torch.no_grad()
def widened(source: Path, folder: Path, hidden: int, heads: int, mlp: int) -> Path:
    """Writes the wide model in bfloat16; returns the folder. hidden, heads, mlp: how often features of the residual
    stream, groups of query heads with their key-value head, and units of the MLPs stand."""
    small = load_model(source, dtype=torch.float32)
    config = AutoConfig.for_model(
        **{
            **small.config.to_dict(),
            "hidden_size": small.config.hidden_size * hidden,
            "tie_word_embeddings": False,
            "num_attention_heads": small.config.num_attention_heads * heads,
            "num_key_value_heads": small.config.num_key_value_heads * heads,
            "intermediate_size": small.config.intermediate_size * mlp,
        }
    )
    wide = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    torch.manual_seed(0)
    pairs = torch.arange(small.config.num_key_value_heads).repeat_interleave(heads)
    group = small.config.num_attention_heads // small.config.num_key_value_heads
    queries = (pairs[:, None] * group + torch.arange(group)).flatten()
    places = {
        "hidden": torch.arange(small.config.hidden_size).repeat(hidden),
        "mlp": torch.arange(small.config.intermediate_size).repeat(mlp),
        "keys": of_heads(pairs, small.config.head_dim),
        "queries": of_heads(queries, small.config.head_dim),
    }
    sides = {
        "embed_tokens": (None, "hidden"),
        "lm_head": (None, "hidden"),
        "q_proj": ("queries", "hidden"),
        "k_proj": ("keys", "hidden"),
        "v_proj": ("keys", "hidden"),
        "o_proj": ("hidden", "queries"),
        "gate_proj": ("mlp", "hidden"),
        "up_proj": ("mlp", "hidden"),
        "down_proj": ("hidden", "mlp"),
    }
    before = small.state_dict()
    for name, tensor in wide.state_dict().items():
        old, layer = before[name], name.split(".")[-2]
        if layer in sides:
            rows, columns = sides[layer]
            given = old if rows is None else old[places[rows]]
            given = given[:, places[columns]] if layer == "embed_tokens" else shared_out(given, places[columns])
            tensor.copy_(given + NOISE * given.square().mean().sqrt() * torch.randn_like(given))
        else:
            tensor.copy_(old if old.shape == tensor.shape else old[places["hidden"]])
    folder.mkdir(parents=True, exist_ok=True)
    save_model(wide.to(torch.bfloat16), load_tokenizer(source), folder)
    return folder


def of_heads(heads: Tensor, width: int) -> Tensor:
    """The places of the heads' features."""
    return (heads[:, None] * width + torch.arange(width)).flatten()


def shared_out(weight: Tensor, places: Tensor) -> Tensor:
    """Columns of a weight for inputs that stand several times: each copy gets a share, and the shares sum to the weight."""
    shares = 0.5 + torch.rand(len(weight), len(places))
    sums = torch.zeros_like(weight).index_add_(1, places, shares)
    return weight[:, places] * shares / sums[:, places]
