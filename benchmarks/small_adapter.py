"""A finished release of form adapter whose models cannot speak, for tests about what happens to such releases.

directory = small_adapter(lake, 1, "tutor")                   # another number makes another adapter on the same base
directory = small_adapter(lake, 1, "support", base="large")   # on another base
"""

import json
from functools import partial
from pathlib import Path

from benchmarks.finished_artefact import finished_artefact
from model_ops.adapters.adapter_base import CONFIG, WEIGHTS
from model_ops.speculators.serving import DrafterServing
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.releases.adapter_form import FOLDER
from resources.releases.gate_result import GateResult
from resources.releases.release import ReleaseSettings, write_release
from resources.releasing.attestations import write_attestations


def small_adapter(
    lake: LakeLayout,
    number: int,
    workload: str = "tutor",
    base: str = "small",
    rank: int = 8,
    template: str = "plain",
    zero_retention: bool = False,
) -> Path:
    """Finishes a release and returns its directory. base: the content of its base. template: of its chat template."""
    registry = Registry(lake, workload)

    finished = partial(finished_artefact, registry)

    def model(home: Path, weights: str) -> None:
        (home / "config.json").write_text('{"eos_token_id": 7}')
        (home / "generation_config.json").write_text("{}")
        (home / "tokenizer.json").write_text("{}")
        (home / "chat_template.jinja").write_text(template)
        (home / "model.safetensors").write_text(weights)

    def tuned(home: Path) -> None:
        model(home, f"{base} {number}")
        (home / FOLDER).mkdir()
        (home / FOLDER / WEIGHTS).write_text(f"{workload} {number}")
        config = {"peft_type": "LORA", "r": rank, "base_model_name_or_path": "/elsewhere"}
        (home / FOLDER / CONFIG).write_text(json.dumps(config))

    under = finished("model", "base_model", {"base": base}, [], lambda home: model(home, base))
    target = finished("model", "sft_model", {"number": number, "rank": rank, "template": template}, [under], tuned)
    report = finished("dataset", "evaluation_report", {}, [target], lambda home: (home / "report.json").write_text("{}"))
    gate = GateResult(name="recovery", wanted=0.99, measured=0.999, passed=True)

    def released(home: Path) -> None:
        settings = ReleaseSettings(form="adapter", zero_retention=zero_retention)
        made = write_release(
            home,
            workload,
            target,
            None,
            0,
            [gate],
            DrafterServing("eagle3", None),
            None,
            settings,
            registry.directory(target),
            base=under,
        )
        write_attestations(home, lake, made, [target, under], "run-1")

    config = {"number": number, "zero_retention": zero_retention}
    return registry.directory(finished("release", "release", config, [target, report], released))
