"""Makes a workload's next release: what it serves, gates, serving files, attestations and pages; nothing is served yet.

    manifest, gates = make_release(workshop, policy, release_settings, speculator_settings)

`ReleaseCandidate.of` reads the current models and their report, chooses what is drafted with, and checks the gates;
`ReleaseCandidate.write` fills the release's directory; `make_release` signs it if this process has a key, and nominates it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model_ops.drafting import DraftingChoice
from model_ops.speculators import ARCHITECTURES, DrafterServing, SpeculatorSettings
from resources.artefacts import rows_erased_from
from resources.endpoints import Endpoint
from resources.manifests import Manifest
from resources.releases import (
    GateResult,
    Gates,
    ReleasePolicy,
    ReleaseRef,
    ReleaseSettings,
    decide_drafting,
    form_of,
    write_release,
)
from resources.releasing import (
    Champion,
    GateInputs,
    attest,
    champion_to_beat,
    check_gates,
    facts_of,
    read_evaluation,
    summarise,
    worth_of,
    write_approval_page,
    write_attestations,
)
from resources.signing import is_signed, signing_key
from resources.stages import ModelPolicy
from resources.workshop.workshop import Workshop

RELEASE_SOURCES = (
    "resources/releases/release.py",
    "resources/releases/adapter_form.py",
    "resources/releasing/gates.py",
    "resources/releasing/champion.py",
    "resources/releasing/summary.py",
    "resources/releases/drafting_decision.py",
    "resources/releasing/approval_page.py",
    "resources/releasing/attestations.py",
    "resources/releasing/worth.py",
)


def make_release(
    workshop: Workshop, policy: ModelPolicy, settings: ReleaseSettings, drafter_settings: SpeculatorSettings
) -> tuple[Manifest, list[GateResult]]:
    """Makes a release of the current models and nominates it as the endpoint's candidate."""
    candidate = ReleaseCandidate.of(workshop, policy, settings, drafter_settings)
    manifest = workshop.build(
        "release",
        "release",
        op="release",
        sources=RELEASE_SOURCES,
        config=candidate.config(),
        inputs=[item.as_input() for item in (*candidate.served, candidate.evaluation)],
        work=candidate.write,
    )
    directory = workshop.directory(manifest)
    if (key := signing_key()) is not None and not is_signed(directory):
        attest(workshop.lake, directory, key)
    Endpoint(workshop.lake, workshop.workload).nominate(ReleaseRef.of(directory))
    workshop.publish_catalog()
    return manifest, candidate.gates


@dataclass(frozen=True)
class ReleaseCandidate:
    """What a release consists of, and what was measured of it."""

    workshop: Workshop
    settings: ReleaseSettings
    target: Manifest
    drafter: Manifest | None
    base: Manifest | None
    """The model that the target's adapter was trained on, for a release of form adapter."""
    evaluation: Manifest
    champion: Champion | None
    serving: DrafterServing
    draft_tokens: int
    choice: DraftingChoice
    bounds: Gates
    gates: list[GateResult]
    worth: str

    @classmethod
    def of(
        cls, workshop: Workshop, policy: ModelPolicy, settings: ReleaseSettings, drafter_settings: SpeculatorSettings
    ) -> ReleaseCandidate:
        """Raises ManifestError if a model or the report is missing or out of date."""
        target = workshop.current("model", policy.served)
        drafter = workshop.current("model", "speculator") if policy.speculator else None
        base = settings.base_of(workshop.lake, target)
        evaluation = workshop.current("dataset", "evaluation_report")
        serving, k = ARCHITECTURES[drafter_settings.architecture].serving, drafter_settings.num_speculative_tokens
        champion = champion_to_beat(workshop.lake, workshop.workload, target, drafter)
        bounds = settings.gates.for_weights_in(workshop.directory(target))
        report, speed = read_evaluation(workshop.directory(evaluation))
        architecture = serving.architecture if drafter else None
        choice = decide_drafting(settings.drafting, report, speed, architecture, k)
        compared = GateInputs.of(
            report,
            served_form=form_of(choice.drafting, k),
            champion=champion,
            student="student_model" in policy.stages,
            taught=any(policy.rows_of(name) == "teacher_answers" for name in policy.stages) and not policy.taught_by_itself,
            drafter=architecture,
            temperature=drafter_settings.answers.measured_at,
            erased_rows=rows_erased_from(workshop.lake, [item for item in (target, drafter) if item is not None]),
        )
        gates, said = check_gates(bounds, compared), worth_of(report, compared.learnt, champion, bounds.gain_over_base)
        return cls(workshop, settings, target, drafter, base, evaluation, champion, serving, k, choice, bounds, gates, said)

    @property
    def served(self) -> list[Manifest]:
        return [item for item in (self.target, self.drafter) if item is not None]

    def config(self) -> dict[str, Any]:
        """What the release's version depends on, besides its inputs."""
        settings = self.settings
        return self.bounds.model_dump() | {
            "serving": asdict(self.serving) if self.drafter else None,
            "champion": self.champion.release if self.champion else None,
            "policy": ReleasePolicy.of(settings).model_dump(),
            "drafting": self.choice.drafting.model_dump(mode="json"),
            "server": settings.serving.on(settings.serve_on).model_dump(),
            "zero_retention": settings.zero_retention,
            **({"form": settings.form} if self.base else {}),
        }

    def write(self, output: Path) -> dict[str, Any]:
        """Fills the release's directory; returns its metrics."""
        lake, workload, settings = self.workshop.lake, self.workshop.workload, self.settings
        models, target = (self.target, self.drafter, self.draft_tokens), self.workshop.directory(self.target)
        policy = ReleasePolicy.of(settings)
        release = write_release(
            output, workload, *models, self.gates, self.serving, policy, settings, target, self.choice, self.base, self.worth
        )
        parts = [*self.served, *([self.base] if self.base else [])]
        write_attestations(output, lake, release, parts, self.workshop.registry.run_id)
        facts = facts_of(lake, release, output.name, self.served, self.champion.release if self.champion else None)
        summary = summarise(lake, workload, self.serving, self.gates, output.name, facts, self.choice, self.worth)
        write_approval_page(output, lake, summary, release, self.workshop.directory(self.evaluation), self.champion)
        return summary.write(output) | {"gates": {gate.name: gate.model_dump(exclude={"name"}) for gate in self.gates}}
