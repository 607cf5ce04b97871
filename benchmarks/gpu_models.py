"""Models, rows and clocks that the parts of benchmarks.gpu share: Llama's 8B shape on CUDA, a toy on the CPU.

Weights are random and made on the device in the dtype they are used in. A device that is too small for the 8B model gets fewer
layers of the same width; every row says how many.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from model_ops.documents.documents import Document
from model_ops.models.attention import packed_attention as packed_attention  # registers "packed"

LLAMA_8B = {
    "hidden_size": 4_096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": False,
}
TOY = {
    **LLAMA_8B,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1_024,
}
BYTES_OF_8B, EMBEDDING_SHARE = 4 * 8.03e9, 0.13
"""Size in float32, and the share of embedding and head."""
MEMORY_SHARE = 0.5
"""Most of the device's memory that the weights may take."""


def config_for(where: torch.device, fitted: bool = True, **changes: Any) -> Any:
    """The config of the model to measure. fitted: with as many layers as the device holds in float32."""
    values = dict(LLAMA_8B if where.type == "cuda" else TOY)
    if where.type == "cuda" and fitted:
        share = torch.cuda.mem_get_info(where)[1] * MEMORY_SHARE / BYTES_OF_8B
        values["num_hidden_layers"] = max(4, min(32, int(32 * (share - EMBEDDING_SHARE) / (1 - EMBEDDING_SHARE))))
    return AutoConfig.for_model("llama", **{**values, **changes}, bos_token_id=None, eos_token_id=None)


def random_model(config: Any, where: torch.device, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    """A seeded random model in evaluation mode, never on the host."""
    torch.manual_seed(0)
    with torch.device(where):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention).eval()


def documents(count: int, shortest: int, longest: int, vocab: int) -> list[Document]:
    """Seeded random documents, every token of which is learnt or scored."""
    generator = np.random.default_rng(0)
    return [
        Document(f"row-{i}", generator.integers(0, vocab, length, dtype=np.int32), np.ones(length, dtype=bool))
        for i, length in enumerate(generator.integers(shortest, longest + 1, count))
    ]


def prompts(count: int, tokens: int, vocab: int) -> list[list[int]]:
    """Seeded random prompts of half to all of `tokens` tokens."""
    return [document.input_ids.tolist() for document in documents(count, max(1, tokens // 2), tokens, vocab)]


def seconds_of(work: Callable[[], Any], where: torch.device, repeats: int = 5) -> float:
    """The median time of `work` after two unmeasured calls, until the device has finished."""
    found = []
    for _ in range(2 + repeats):
        began_s = time.perf_counter()
        work()
        finish(where)
        found.append(time.perf_counter() - began_s)
    return median(found[2:])


def finish(where: torch.device) -> None:
    """Waits for the device."""
    if where.type == "cuda":
        torch.cuda.synchronize(where)


def peak_gib(where: torch.device) -> float | None:
    """Most memory that torch held on the device in this process; None on a CPU."""
    return round(torch.cuda.max_memory_allocated(where) / 2**30, 2) if where.type == "cuda" else None
