"""A release of form adapter with random LoRA weights on a real base model, written by the trainer's own export.

    directory = random_adapter(lake, base, "tutor", seed=0)       # base: a model directory; another seed makes another adapter

Its answers are nonsense that differs from the base's and from that of other seeds, so who answered can be told.
"""

import shutil
from functools import partial
from pathlib import Path

import torch

from benchmarks.finished_artefact import finished_artefact
from model_ops.adapters.lora import adapted_layers
from model_ops.adapters.lora_settings import LoraSettings
from model_ops.models.model_directory import load_tokenizer
from model_ops.speculators.serving import DrafterServing
from model_ops.training.tuning import load_to_tune, save_tuned
from model_ops.training.tuning_settings import TuningSettings
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import CARD, RUN_RECORDS
from resources.releases.gate_result import GateResult
from resources.releases.release import ReleaseSettings, write_release
from resources.releasing.attestations import write_attestations

STANDARD_DEVIATION = 0.3
"""Of the weights of B: enough that greedy answers differ."""


def random_adapter(lake: LakeLayout, base: Path, workload: str, seed: int, rank: int = 4) -> Path:
    """Finishes base, target, report and release, and returns the release's directory."""
    registry = Registry(lake, workload)

    finished = partial(finished_artefact, registry)

    def copied(output: Path) -> None:
        shutil.copytree(base, output, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json", CARD, *RUN_RECORDS))

    def tuned(output: Path) -> None:
        settings = TuningSettings(method="lora", lora=LoraSettings(rank=rank, alpha=2 * rank)).resolved()
        model, _ = load_to_tune(registry.directory(under), settings, torch.device("cpu"))
        generator = torch.Generator().manual_seed(seed)
        for layer in adapted_layers(model).values():
            torch.nn.init.normal_(layer.lora_B.data, std=STANDARD_DEVIATION, generator=generator)
        save_tuned(model, load_tokenizer(base), registry.directory(under), settings, output)

    def released(output: Path) -> None:
        gate = GateResult(name="recovery", wanted=0.9, measured=1.0, passed=True)
        made = write_release(
            output,
            workload,
            target,
            None,
            0,
            [gate],
            DrafterServing("eagle3", None),
            None,
            ReleaseSettings(form="adapter"),
            registry.directory(target),
            base=under,
        )
        write_attestations(output, lake, made, [target, under], "random")

    under = finished("model", "base_model", {}, [], copied)
    target = finished("model", "sft_model", {"seed": seed, "rank": rank}, [under], tuned)
    report = finished("dataset", "evaluation_report", {}, [target], lambda home: (home / "report.json").write_text("{}"))
    return registry.directory(finished("release", "release", {"seed": seed, "rank": rank}, [target, report], released))
