"""Schemes that vLLM loads on a CPU (model_ops/planning/servers.py), in a real server: int4, FP8, and an FP8 cache of keys and
values. int8 is what the other tests serve."""

import random

import pytest
import torch

from model_ops.jobs import Progress
from model_ops.operations.quantize import quantize_directory
from model_ops.quantization.quantized_model import load_quantized
from model_ops.quantization.schemes import SCHEMES
from tests.model_ops.tiny_models import write_target
from tests.serving.served_in_vllm import served

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]

CACHED = {f"model.layers.{index}.self_attn": (0.01, 0.012) for index in range(2)}
"""Scales near those that calibration finds for this model."""


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        pytest.param("w4a16", CACHED, marks=pytest.mark.thorough),
        *(pytest.param(name, None, marks=pytest.mark.thorough) for name in ("fp8", "w4a16", "w4a16_g32")),
    ],
)
def test_a_scheme_is_served_as_its_layers_compute(python, tmp_path, name, cache):
    """The server's greedy tokens are, within the noise of bfloat16, the likeliest ones of `load_quantized`. vLLM's kernel for
    CPUs cuts keys and values off where ours rounds, hence the wider bound."""
    write_target(
        tmp_path / "model",
        layers=2,
        tied=False,
        hidden_size=256,
        intermediate_size=512,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        initializer_range=0.08,
        max_position_embeddings=512,
    )
    quantize_directory(tmp_path / "model", tmp_path / "q", Progress(), SCHEMES[name], cache=cache)
    numbers = random.Random(0)
    prompts = [[numbers.randrange(3, 290) for _ in range(20)] for _ in range(20)]
    (run,) = served(python, tmp_path, prompts, [0], tmp_path / "q")
    model, gaps, apart = load_quantized(tmp_path / "q"), [], []
    for prompt, reply in zip(prompts, run.replies, strict=True):
        ids = torch.tensor([[*prompt, *reply.token_ids]])
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits[0, len(prompt) - 1 :].float()
        gaps.append(logits.amax(-1) - logits.gather(1, ids[0, len(prompt) :, None])[:, 0])
        apart.append(logits.amax(-1) - logits.median(-1).values)
    gaps, apart = torch.cat(gaps), torch.cat(apart)
    print(
        f"{(gaps == 0).float().mean():.3f} of {len(gaps)} tokens are the same, mean gap {gaps.mean():.4f} of {apart.mean():.2f}"
    )
    assert gaps.mean() < (0.05 if cache else 0.02) * apart.mean()
