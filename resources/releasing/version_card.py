"""The model card of one version of a model or drafter, written before its manifest: a record of the run, not part of the
model's digest. A release, which depends on no network, does not import it. A directory that has a README.md already keeps it.
"""

import json
from pathlib import Path

from model_ops.adapters import CONFIG
from model_ops.rewards import RECORD, RewardRecord
from model_ops.serving import speculative_config
from model_ops.speculators import ARCHITECTURES
from resources.lake import LakeLayout
from resources.manifests import CARD, Manifest
from resources.releases import FOLDER, ReportSection
from resources.releasing.model_card import render, write_card
from resources.releasing.release_facts import ReleaseFacts, model_facts
from resources.stages import stage

OF_THE_RUN = ("second", "memory", "gib", "resumed")
"""Parts of the names of metrics that say something of a run, not of its model."""


def write_version_card(output: Path, lake: LakeLayout, model: Manifest) -> None:
    """model: the manifest as it will be written; its files may be missing."""
    if (output / CARD).exists():
        return
    facts = model_facts(lake, model)
    body = render(
        "version.md.j2",
        model=model,
        about=stage(model.name.rpartition("/")[2]).card,
        facts=facts,
        sections=[*_held_out_pairs(output), *_metrics(model), *facts.mixed(), facts.lineage_section()],
        drafts=facts.drafter != "none",
        scores=(output / RECORD).exists(),
        config=_drafting(facts),
        has_adapter=(output / FOLDER / CONFIG).exists(),
        gguf=[path.name for path in sorted(output.glob("*.gguf"))],
    )
    write_card(output, model.name.replace("/", "-"), facts, [], body)  # evaluation results are the release's


def _drafting(facts: ReleaseFacts) -> str:
    """vLLM's --speculative-config for a drafter; "" for a model, and for a drafter that vLLM does not run."""
    options = ARCHITECTURES[facts.drafter].serving.vllm if facts.drafter in ARCHITECTURES else None
    return json.dumps(speculative_config(options, "THIS_DIRECTORY", facts.k)) if options is not None else ""


def _held_out_pairs(output: Path) -> list[ReportSection]:
    """What a reward model's record says of held-out pairs, by the source of the pairs; [] for other models."""
    if not (output / RECORD).exists():
        return []
    record = RewardRecord.read(output)
    rows = [
        [
            name,
            f"{of['pairs']:,}",
            f"{of['sessions']:,}",
            f"{of['value']:.3f}",
            f"{of['low']:.3f} to {of['high']:.3f}",
            f"{of['longer_wins']:.3f}",
            f"{of['most_training_pairs']:.3f}",
        ]
        for name, of in record.held_out["accuracy"].items()
        if of["pairs"]
    ]
    may = "It may grade." if record.may_grade else f"It may not grade: {'; '.join(record.missed)}."
    note = (
        f"{may} Accuracy is the share of pairs with the higher score on the chosen answer, with a 95 % interval over sessions. "
        "Longer wins, most training pairs: rules that look at length alone. later: feedback that came after all training rows. "
        "Thumbs as the only reward make models sycophantic: use scores beside other rewards."
    )
    columns = ["source", "pairs", "sessions", "accuracy", "interval", "longer wins", "most training pairs"]
    return [ReportSection("Held-out pairs", columns, rows, note)]


def _metrics(model: Manifest) -> list[ReportSection]:
    rows = [
        [name.replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value:.6g}"]
        for name, value in model.metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and not any(part in name for part in OF_THE_RUN)
    ]
    note = "Measured while it was made; losses are in nats per token. Its release has measurements on held-out rows."
    return [ReportSection("Training metrics", ["metric", "value"], rows, note)] if rows else []
