"""The planner's predictions against measured peaks: small models trained on this CPU, each in a process of its own.

    python -m benchmarks.plan            # 15 models: depth, width, vocabulary, length, method, checkpointing
    python -m benchmarks.plan --quick    # 3 of them

Measured is the peak resident memory of a process that trains two real steps (trainer, loss, attention, optimizer of the
project), less what it held before the model was made. Predicted is what `millrace plan --gpus cpu` adds up for it, less
the allowances for the process and for fragmentation. error = predicted / measured - 1.
"""

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.one_case import one_case
from benchmarks.record import record

MIB = 2**20


@dataclass(frozen=True)
class Case:
    """One small model and how it is trained."""

    hidden: int
    layers: int
    mlp: int
    vocab: int
    document_tokens: int
    micro_batch_tokens: int
    method: str = "full"
    checkpointing: str = "none"
    tied: bool = True
    micro_batches: int = 1


CASES = (
    Case(512, 6, 1536, 8_192, 512, 4_096),
    Case(512, 6, 1536, 8_192, 512, 4_096, checkpointing="full"),
    Case(256, 8, 768, 65_536, 1_024, 4_096, tied=False),
    Case(512, 6, 1536, 8_192, 512, 4_096, checkpointing="selective"),
    Case(512, 12, 1536, 4_096, 256, 2_048, micro_batches=2),
    Case(512, 12, 1536, 4_096, 256, 8_192, checkpointing="full", micro_batches=2),
    Case(256, 16, 1024, 16_384, 128, 8_192, checkpointing="selective"),
    Case(768, 4, 3072, 32_000, 1_024, 4_096),
    Case(768, 4, 3072, 32_000, 2_048, 4_096, checkpointing="full"),
    Case(768, 4, 3072, 32_000, 256, 1_024, tied=False),
    Case(1024, 4, 2816, 8_192, 512, 4_096, method="lora"),
    Case(1024, 4, 2816, 8_192, 512, 4_096, method="lora", checkpointing="full"),
    Case(1024, 4, 2816, 65_536, 2_048, 2_048, method="lora"),
    Case(384, 24, 1024, 4_096, 64, 4_096),
    Case(384, 24, 1024, 4_096, 4_096, 4_096, checkpointing="full"),
)
QUICK = (
    Case(256, 4, 768, 4_096, 256, 2_048),
    Case(256, 4, 768, 4_096, 256, 2_048, checkpointing="full"),
    Case(512, 3, 1024, 4_096, 256, 2_048, method="lora"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(_measure(Case(**json.loads(given.case)))))
        return
    rows = []
    for case in QUICK if given.quick else CASES:
        # Freed blocks go back to the system, so that the peak counts live memory only.
        measured = one_case("plan", "--case", asdict(case), MALLOC_MMAP_THRESHOLD_="65536")
        predicted = _predict(case)
        row = {
            **asdict(case),
            "measured_mib": round(measured / MIB, 1),
            "predicted_mib": round(predicted / MIB, 1),
            "error": round(predicted / measured - 1, 4),
        }
        rows.append(row)
        print(
            f"{case.method:5} {case.checkpointing:9} hidden {case.hidden:5} layers {case.layers:3} vocab {case.vocab:6} "
            f"tokens {case.micro_batch_tokens:5} x {case.micro_batches}  measured {row['measured_mib']:8,.1f} MiB  "
            f"predicted {row['predicted_mib']:8,.1f}  {row['error']:+.1%}",
            flush=True,
        )
    errors = sorted(abs(row["error"]) for row in rows)
    record("plan", {"median_error": median(errors), "worst_error": errors[-1], "rows": rows}, keep=not given.quick)


def _config(case: Case):
    from transformers import AutoConfig

    return AutoConfig.for_model(
        "qwen3",
        hidden_size=case.hidden,
        intermediate_size=case.mlp,
        num_hidden_layers=case.layers,
        num_attention_heads=case.hidden // 64,
        num_key_value_heads=max(1, case.hidden // 128),
        head_dim=64,
        vocab_size=case.vocab,
        max_position_embeddings=8_192,
        tie_word_embeddings=case.tied,
        eos_token_id=None,
        pad_token_id=None,
        bos_token_id=None,
    )


def _predict(case: Case) -> float:
    from model_ops.machine.devices import this_machine
    from model_ops.planning.memory_plan import MeshSizes, Setup, memory_of
    from model_ops.planning.needs import Training, needs_of

    training = Training(
        case.method,
        case.micro_batch_tokens,
        case.micro_batch_tokens * case.micro_batches,
        micro_batch_tokens=case.micro_batch_tokens,
    )
    needs = needs_of(_config(case), training, "case", "cpu", document_tokens=case.document_tokens)
    memory = memory_of(needs, Setup(MeshSizes(), case.micro_batch_tokens, case.checkpointing), this_machine())
    return memory.total - memory.device - memory.spare


def _measure(case: Case) -> float:
    """Bytes of the peak beyond what the process held before the model. Libraries load parts of themselves at their first
    use, so a small model goes through everything before."""
    import psutil
    import torch

    from model_ops.training.step_meter import peak_memory_mb

    torch.set_num_threads(1)
    _train(Case(128, 1, 128, 512, 32, 64, method=case.method, checkpointing=case.checkpointing))
    base = psutil.Process().memory_info().rss
    _train(case)
    return peak_memory_mb(torch.device("cpu")) * MIB - base


def _train(case: Case) -> None:
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    from model_ops.adapters.lora import add_adapters
    from model_ops.adapters.lora_settings import LoraSettings
    from model_ops.documents.documents import Document
    from model_ops.documents.packing import PackedPlan
    from model_ops.jobs import Progress
    from model_ops.models.attention import packed_attention as packed_attention  # registers "packed"
    from model_ops.objectives.sft import next_token_loss
    from model_ops.operations.sft_settings import SftSettings
    from model_ops.training.trainer import train

    config = _config(case)
    config._attn_implementation = "packed"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if case.method == "lora" else torch.float32)
    if case.method == "lora":
        add_adapters(model, LoraSettings())
    generator = np.random.default_rng(0)
    number = case.micro_batch_tokens * case.micro_batches // case.document_tokens
    documents = [
        Document(f"row-{i}", generator.integers(0, case.vocab, case.document_tokens), np.ones(case.document_tokens, dtype=bool))
        for i in range(number)
    ]
    settings = SftSettings(
        steps=2,
        learning_rate=1e-4,
        tokens_per_step=case.micro_batch_tokens * case.micro_batches,
        max_length=case.micro_batch_tokens,
        micro_batch_tokens=case.micro_batch_tokens,
        activation_checkpointing=case.checkpointing,
    ).resolved()
    with tempfile.TemporaryDirectory() as folder:
        train(model, PackedPlan(documents, settings), next_token_loss, settings, Path(folder) / ".work", Progress(None), "plan")


if __name__ == "__main__":
    main()
