"""Speed of this machine's CPU on two blocks and the head of a model's shape, by the project's own code: training, reading,
decoding. Measured in seconds of this thread on the processor, which waits for its other threads but not for other work on the
machine. Imports no torch until it measures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from model_ops.machine import Precision, cpu_speeds

BLOCKS, ROUNDS, LONGEST_SECONDS = 2, 5, 0.9
"""Blocks of the measured model; times that each part runs, of which the fastest counts; seconds after which no round begins."""
TOKENS, LEAST_TOKENS, DOCUMENT_TOKENS = 2_048, 128, 256
PART_SECONDS = 0.15
"""Seconds at the measured speed of products in which a part should end: large models pass fewer tokens."""
FEW_ROWS, MANY_ROWS, CACHED_TOKENS, DECODED = 8, 64, 192, 4
FORWARD, REACHED, REACHED_DECODING, MICRO_BATCH_TOKENS = 2, 0.35, 0.10, 4_096
PASS_SECONDS, ROUND_SECONDS, COLUMN_SECONDS = 0.010, 0.0025, 1e-4
"""Assumed: operations of a weight and token; the share of the measured speed that trainings and decoding reach; overhead of a
block in a micro-batch and in a round of decoding, and of a column of GPTQ. Those of the demo's models on 2 cores."""
GPTQ_INPUTS, FEW_OUTPUTS, MANY_OUTPUTS = 512, 256, 1_024
VOCABULARY = 65_536
"""Rows of a larger head that are measured; the time of the others is in proportion."""


class ShapeRates(NamedTuple):
    """Seconds on this machine. Of one block, or of the head; of a token, or of a round of decoding and of each of its rows."""

    forward_s: float
    step_s: float
    """Forward and backward."""
    head_forward_s: float
    head_step_s: float
    prefill_s: float
    round_s: float
    row_s: float
    head_round_s: float
    head_row_s: float
    exact_s: float
    """As forward_s, in float32, in which evaluations read on a CPU."""
    head_exact_s: float
    column_s: float
    """GPTQ: a column of a matrix, and each output of it."""
    output_s: float
    update_s: float
    """The optimizer, for each trained weight."""

    @classmethod
    def assumed(cls, gflops: float, block: float, head: float) -> ShapeRates:
        """By the speed of products, where nothing was measured. block, head: weights that a token passes."""
        of_block, of_head = (FORWARD * weights / (REACHED * gflops * 1e9) for weights in (block, head))
        row_s, head_row_s = (FORWARD * weights / (REACHED_DECODING * gflops * 1e9) for weights in (block, head))
        overhead_s = PASS_SECONDS / MICRO_BATCH_TOKENS
        of_round = {"round_s": ROUND_SECONDS, "row_s": row_s, "head_round_s": 0.0, "head_row_s": head_row_s}
        return cls(
            forward_s=of_block,
            step_s=3 * of_block + overhead_s,
            head_forward_s=of_head,
            head_step_s=3 * of_head,
            prefill_s=of_block,
            **of_round,
            exact_s=of_block,
            head_exact_s=of_head,
            column_s=COLUMN_SECONDS,
            output_s=0.0,
            update_s=0.0,
        )


def measure_shapes(values: dict[str, Any], precision: Precision, rank: int) -> ShapeRates:
    """Measures with torch's threads in this process."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from model_ops.adapters import LoraSettings, add_adapters
    from model_ops.calibration import gptq
    from model_ops.decoding import decoding_dtype, new_runner
    from model_ops.families import attention_with_cache
    from model_ops.losses import chunked_head, cross_entropy_rows
    from model_ops.machine import concrete_precision, products_in
    from model_ops.planning.needs import count_weights
    from model_ops.planning.step_trace import head_of

    torch.manual_seed(0)
    device, config = torch.device("cpu"), AutoConfig.for_model(**values)
    counts, vocabulary = count_weights(config), config.vocab_size
    config.num_hidden_layers, config.vocab_size = BLOCKS, min(VOCABULARY, vocabulary)
    for token in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, token, None)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[-BLOCKS:]
    chosen = concrete_precision(precision, device)
    dtype = getattr(torch, chosen) if rank else torch.float32
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="packed")
    if rank:
        add_adapters(model, LoraSettings(rank=rank))
    room = PART_SECONDS * max(cpu_speeds()) * 1e9

    def fitting(weights: int) -> int:
        wanted = int(room / (6 * weights)) // LEAST_TOKENS * LEAST_TOKENS
        return min(TOKENS, max(LEAST_TOKENS, wanted))

    tokens = fitting(BLOCKS * counts.block)
    row = {
        "input_ids": torch.randint(config.vocab_size, (1, tokens)),
        "position_ids": torch.arange(tokens)[None] % DOCUMENT_TOKENS,
        "use_cache": False,
        "document_lengths": [min(DOCUMENT_TOKENS, tokens - start) for start in range(0, tokens, DOCUMENT_TOKENS)],
    }

    def forward() -> torch.Tensor:
        with products_in(chosen, device):
            return model.base_model(**row).last_hidden_state

    def step() -> None:
        forward().float().square().mean().backward()

    rows, head = fitting(config.vocab_size * config.hidden_size), head_of(model)
    hidden = torch.randn(rows, config.hidden_size, dtype=dtype)
    labels, weights = torch.randint(config.vocab_size, (rows,)), torch.ones(rows)

    def at_head(trained: bool) -> None:
        inputs = hidden.detach().requires_grad_(trained)
        with products_in(chosen, device), torch.set_grad_enabled(trained):
            loss, _ = chunked_head(inputs, head, cross_entropy_rows(labels, weights, hits=torch.zeros_like(weights)))
        if trained:
            loss.backward()

    def rounded(outputs: int) -> None:
        inputs = torch.randn(2 * GPTQ_INPUTS, GPTQ_INPUTS)
        scales = torch.full((outputs, GPTQ_INPUTS // 128), 0.1, dtype=torch.bfloat16)
        gptq(torch.randn(outputs, GPTQ_INPUTS), inputs.T @ inputs, scales)

    step_s = fastest(step) / tokens / BLOCKS
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.grad is not None), fused=True)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.grad is not None)
    update_s = fastest(optimizer.step) / trained
    scale = vocabulary / config.vocab_size
    head_step_s = fastest(lambda: at_head(True)) / rows * scale
    with torch.no_grad():
        forward_s, head_forward_s = fastest(forward) / tokens / BLOCKS, fastest(lambda: at_head(False)) / rows * scale
        if rank:
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="packed")
        chosen, hidden, head = "float32", hidden.float(), head_of(model)
        exact_s, head_exact_s = fastest(forward) / tokens / BLOCKS, fastest(lambda: at_head(False)) / rows * scale
        few_s, many_s = (fastest(lambda outputs=outputs: rounded(outputs)) for outputs in (FEW_OUTPUTS, MANY_OUTPUTS))
    output_s = max(0.0, many_s - few_s) / GPTQ_INPUTS / (MANY_OUTPUTS - FEW_OUTPUTS)
    column_s = max(0.0, few_s / GPTQ_INPUTS - FEW_OUTPUTS * output_s)
    del model, optimizer
    held = decoding_dtype(device, counts.all)
    with torch.no_grad():
        model = AutoModelForCausalLM.from_config(config, dtype=held, attn_implementation=attention_with_cache(config))
        runner = new_runner(model.eval())
        timings = []
        for count in (FEW_ROWS, MANY_ROWS):
            cache, prompt = runner.new_cache(count), torch.randint(config.vocab_size, (count, min(CACHED_TOKENS, tokens)))
            began_s = time.thread_time()
            runner.forward(prompt, cache)
            prefill_s = (time.thread_time() - began_s) / prompt.numel() / BLOCKS
            cache.lengths += prompt.shape[1]

            def block_round(cache: Any = cache, count: int = count) -> None:
                runner.forward(torch.zeros(count, 1, dtype=torch.int64), cache)

            last = torch.randn(count, config.hidden_size, dtype=held)
            timings.append((fastest(block_round) / BLOCKS, fastest(lambda last=last: runner.logits(last)) * scale, count))
    (few_s, head_few_s, few), (many_s, head_many_s, many) = timings
    row_s, head_row_s = (max(0.0, (b - a) / (many - few)) for a, b in ((few_s, many_s), (head_few_s, head_many_s)))
    rounds = (max(0.0, few_s - few * row_s), row_s, max(0.0, head_few_s - few * head_row_s), head_row_s)
    return ShapeRates(
        forward_s, step_s, head_forward_s, head_step_s, prefill_s, *rounds, exact_s, head_exact_s, column_s, output_s, update_s
    )


def fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls, after one that is not measured."""
    work()
    seconds: list[float] = []
    while not seconds or (len(seconds) < ROUNDS and sum(seconds) < LONGEST_SECONDS):
        began_s = time.thread_time()
        work()
        seconds.append(time.thread_time() - began_s)
    return min(seconds)
