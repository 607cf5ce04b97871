"""A finished release of models that cannot speak, for tests and benchmarks about what happens to releases.

directory = small_release(lake, 1)                       # another number makes another release, of the same model
directory = small_release(lake, 1, weights_mib=20)       # another number makes other weights too, in files of 1 MiB
"""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.finished_artefact import finished_artefact
from model_ops.speculators.serving import DrafterServing, VllmOptions
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.releases.gate_result import GateResult
from resources.releases.release import write_release
from resources.releasing.attestations import write_attestations


def small_release(
    lake: LakeLayout,
    number: int,
    workload: str = "tutor",
    recovery: float = 0.999,
    drafts: bool = False,
    policy=None,
    weights_mib: int = 0,
    gates: Sequence[GateResult] = (),
) -> Path:
    """Finishes a release with its report, target and (drafts) drafter, and returns its directory. What is finished already is
    left as it is. recovery: what its one gate measured; gates: in place of that one; policy: its
    resources.releases.release.ReleasePolicy."""
    registry = Registry(lake, workload)

    finished = partial(finished_artefact, registry)

    def weights(home: Path) -> None:
        for name in ("config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"):
            (home / name).write_text("{}")
        for part in range(weights_mib):
            content = random.Random(f"{number}-{part}").randbytes(1 << 20)
            (home / f"model-{part:05d}.safetensors").write_bytes(content)

    made_for = {"number": number} if weights_mib else {}
    target = finished("model", "sft_model", made_for, [], weights)
    drafter = finished("model", "speculator", made_for, [target], weights) if drafts else None
    served = [item for item in (target, drafter) if item is not None]
    report = finished("dataset", "evaluation_report", {}, served, lambda home: (home / "report.json").write_text("{}"))
    gates = gates or [GateResult(name="recovery", wanted=0.99, measured=recovery, passed=True)]

    serving = DrafterServing("eagle3", VllmOptions("eagle3") if drafts else None)

    def released(home: Path) -> None:
        made = write_release(home, workload, target, drafter, number, list(gates), serving, policy)
        write_attestations(home, lake, made, served, "run-1")

    release = finished("release", "release", {"number": number}, [*served, report], released)
    return registry.directory(release)
