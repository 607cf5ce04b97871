"""A finished release of a model of a few bytes, for what looks at releases and not at models.

    directory = small_release(lake, 1)         # another number makes another release of the same model
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from model_ops.speculators.serving import Serving, VllmOptions
from resources.artefacts.manifest import Manifest
from resources.artefacts.registry import Registry
from resources.attesting.attest import write_attestations
from resources.lake import Lake
from resources.releasing.gate_result import GateResult
from resources.releasing.release import ReleasePolicy, write_release

MODEL_FILES = ("config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors")


def small_release(lake: Lake, number: int, workload: str = "tutor", recovery: float = 0.999, drafts: bool = False,
                  policy: ReleasePolicy | None = None) -> Path:
    """number: its number of drafted tokens. recovery: as its gate measured it. drafts: whether it has a drafter."""
    registry = Registry(lake, workload)

    def finished(kind: Any, name: str, config: dict[str, Any], inputs: list[Manifest], fill: Callable[[Path], Any]) -> Manifest:
        draft = registry.draft(kind, name, name, ("model_ops/job.py",), config, [item.as_input() for item in inputs])
        if draft.finished is None:
            fill(draft.directory)
        return draft.finished or registry.finish(draft, {})

    def weights(home: Path) -> None:
        for name in MODEL_FILES:
            (home / name).write_text("{}")

    target = finished("model", "sft_model", {}, [], weights)
    drafter = finished("model", "speculator", {}, [target], weights) if drafts else None
    served = [item for item in (target, drafter) if item is not None]
    report = finished("dataset", "evaluation_report", {}, served, lambda home: (home / "report.json").write_text("{}"))
    gate = GateResult(name="recovery", wanted=0.99, measured=recovery, passed=True)
    serving = Serving("eagle3", VllmOptions("eagle3") if drafts else None)

    def released(home: Path) -> None:
        made = write_release(home, workload, target, drafter, number, [gate], serving, policy)
        write_attestations(home, lake, made, served, "run-1")

    return registry.directory(finished("release", "release", {"number": number}, [*served, report], released))
