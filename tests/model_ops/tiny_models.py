"""Tiny random models for the tests: every supported architecture, small enough to run in milliseconds."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def tiny_model(model_type: str = "qwen3", layers: int = 8, vocab_size: int = 96, tied: bool = True, seed: int = 0, **changes):
    """A random float32 model in evaluation mode; weights large enough that its distributions are not flat."""
    torch.manual_seed(seed)
    fields = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": vocab_size,
        "max_position_embeddings": 256,
        "tie_word_embeddings": tied,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "bos_token_id": None,
        "initializer_range": 0.2,
        **changes,
    }
    config = AutoConfig.for_model(model_type, **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval().requires_grad_(False)


def write_target(directory, layers: int = 8, vocab_size: int = 300, seed: int = 0, **changes):
    """A tiny model directory as servers load it: weights, tokenizer, chat template, generation config (bf16)."""
    from model_ops.models.model_directory import save_model
    from model_ops.operations.tiny_base import train_tokenizer
    from model_ops.operations.tiny_base_settings import TinyBaseSettings

    tokenizer = train_tokenizer(
        ["def add(a, b):\n    return a + b\n" * 5, "print('hello world')\n" * 5],
        TinyBaseSettings(vocab_size=512).model_copy(update={"vocab_size": vocab_size}),
    )
    model = tiny_model(
        layers=layers,
        vocab_size=vocab_size,
        seed=seed,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **changes,
    )
    directory.mkdir(parents=True, exist_ok=True)
    save_model(model, tokenizer, directory)
    return tokenizer


def write_dataset(directory, rows: int = 12, splits=("train", "validation", "test")):
    """A chat dataset: every third row has two turns."""
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    directory.mkdir(parents=True, exist_ok=True)
    for split in splits:
        records = []
        for index in range(rows if split != "validation" else max(2, rows // 4)):
            messages = [
                {"role": "user", "content": f"add {index} and {index + 1}" * (1 + index % 4)},
                {"role": "assistant", "content": f"return {2 * index + 1}"},
            ]
            if index % 3 == 0:
                messages += [{"role": "user", "content": "again"}, {"role": "assistant", "content": "def add(a, b):"}]
            records.append(
                {
                    "row_id": f"{split}-{index}",
                    "session_id": f"s{index}",
                    "prompt_shape": "two turns" if index % 3 == 0 else "one turn",
                    "messages": json.dumps(messages),
                    "tools": None,
                }
            )
        schema = pa.schema([(name, pa.string()) for name in records[0]])
        pq.write_table(pa.Table.from_pylist(records, schema=schema), directory / f"{split}.parquet")
    return directory


def run_job(operation, output, inputs=None, **settings):
    """What the module of an operation returns for this job."""
    from model_ops.jobs import Job, Progress

    name = operation.__name__.removesuffix(".operation").rpartition(".")[2]
    return operation.run(Job(operation=name, output=output, inputs=inputs or {}, settings=settings), Progress())
