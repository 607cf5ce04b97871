"""Gates: bounds that a release's measurements must meet before anyone may approve it.

A gate looks at one end of the 95 % interval, so that too few rows cannot let a worse model pass: a loss may exceed another one
by at most the bound at the interval's upper end, a gain must reach it at the lower end. A gate without a measurement fails with
the reason, unless there is nothing to compare with. A release that trained nothing (it quantizes its base, or adds a drafter)
need not gain on its base."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from model_ops.evaluation import Measurement, find, in_a_server, measurement, measurements_of
from resources.releases import ERASED_ROWS, GateResult, Gates, gate_problem
from resources.releasing.champion import Champion
from resources.releasing.worth import gains, reaches
from resources.stages import STAGES, stage

MEND_SERVER = (
    "server.log in the evaluation report's folder has what the server wrote; change quantize or evaluation.server, "
    "and run the recipe again"
)
NOT_IN_REPORT = "the evaluation report does not hold it"
GAINING = {each.role for each in STAGES if each.gains}
"""Roles of models that learnt something. A student alone is a smaller form of its teacher."""
MEND_GAIN = (
    "no other measure shows a gain either: train longer, at a higher learning_rate or on more rows, or measure what the "
    "training is for (evals); release.gates.gain_over_base: null releases it as it is"
)


@dataclass(frozen=True)
class GateInputs:
    """What a report measured, and what there was to compare.

    suites: evaluation suites that were to be asked. champion: the release that was served before; None if none was.
    student, preference, rft: whether the served model went through distillation, and training on preferences and on rewards.
    trained, taught: whether it learnt anything beside its base, and whether that was a teacher's answers.
    drafter: architecture of the release's drafter; None for none. temperature: of acceptance in reports without `as logged`.
    erased_rows: rows that the models learnt and that were erased since. costliest: which block's quantization costs most, in
    words. in_server: the report's account of the server that was asked for; empty if none was. served_form: the form in it that
    the release serves; "" for the one with the drafter, if there is one."""

    measurements: Sequence[Measurement]
    not_measured: Mapping[str, str] = field(default_factory=dict)
    suites: Sequence[str] = ()
    champion: Champion | None = None
    student: bool = False
    preference: bool = False
    rft: bool = False
    trained: bool = False
    taught: bool = False
    drafter: str | None = None
    temperature: float = 1.0
    erased_rows: int = 0
    costliest: str = ""
    in_server: Mapping[str, Any] = field(default_factory=dict)
    served_form: str = ""

    @classmethod
    def of(cls, report: Mapping[str, Any], **known: Any) -> GateInputs:
        """From the content of a report.json."""
        blocks, roles = report.get("against_reference", {}).get("blocks", []), report.get("same_directory", {})
        return cls(
            measurements_of(report),
            report.get("not_measured", {}),
            tuple(report.get("tasks", {})),
            costliest=_costliest(blocks),
            in_server=report.get("in_server", {}),
            preference=_is_measured_on("preferences", roles),
            rft=_is_measured_on("prompts", roles),
            **{"trained": not GAINING.isdisjoint(roles), **known},
        )

    @property
    def learnt(self) -> bool:
        """Whether the release must gain on its base: one that quantizes it, or adds a drafter, learnt nothing."""
        return self.trained or self.taught

    @property
    def quantized(self) -> bool:
        """Whether the report compares the served model with an unquantized form."""
        return find(self.measurements, "divergence", against="reference") is not None


def _is_measured_on(rows: str, roles: Collection[str]) -> bool:
    """Whether one of these models learnt what the evaluation measures on this input."""
    return any(each.measured_as == rows and each.role in roles for each in STAGES)


def _costliest(blocks: Sequence[Mapping[str, Any]]) -> str:
    if not blocks:
        return ""
    return (
        f"of the model's blocks, number {blocks[0]['block']} costs most: with its unquantized weights the divergence is "
        f"{blocks[0]['cost']:.3g} nats per token lower"
    )


def check_gates(gates: Gates, compared: GateInputs) -> list[GateResult]:
    """Checks each enabled gate."""
    kinds = (_gain, _recovery, _losses, _accuracies, _preferences, _rewards, _acceptance, _served, _erased)
    return [_judged(gate) for kind in kinds for gate in kind(gates, compared)]


def _gain(gates: Gates, compared: GateInputs) -> Iterator[GateResult]:
    """By the first measure that shows a gain over the base, else by the first one that there is."""
    name, bound = "gain_over_base", gates.gain_over_base
    if bound is None or not compared.learnt:
        return
    gains_ = [each.gain for each in gains(compared.measurements, "base")]
    shown = next((each for each in gains_ if reaches(each, bound)), None)
    if compared.taught and not shown and all(each.what == "loss_increase" for each in gains_):
        yield _nothing(name, bound, "a teacher's answers were learnt, held-out answers are the log's, and no suite was asked")
    else:
        first = shown or next(iter(gains_), None)
        yield _gate(name, bound, first, compared, "loss of base", "loss of target", judged_by="low", remark=MEND_GAIN)


def _recovery(gates: Gates, compared: GateInputs) -> Iterator[GateResult]:
    if gates.recovery is not None:
        recovery = find(compared.measurements, "recovery", on=measurement.HELD_OUT)
        yield _gate("recovery", gates.recovery, recovery, compared, "loss of reference", remark=compared.costliest)
    if not compared.quantized:
        return
    if (bound := gates.recovery_long_context) is not None:
        name, recovery = "recovery_long_context", find(compared.measurements, "recovery", on=measurement.LONG_CONTEXT)
        yield (
            _gate(name, bound, recovery, compared, remark=compared.costliest)
            if recovery
            else _nothing(name, bound, compared.not_measured.get(measurement.LONG_CONTEXT, NOT_IN_REPORT))
        )
    yield from _accuracy_left(gates, compared)


def _accuracy_left(gates: Gates, compared: GateInputs) -> Iterator[GateResult]:
    """The share of its unquantized form's score that the served model keeps: mean of the suites, and of each."""
    shares = [each for each in compared.measurements if each.what == "accuracy_kept"]
    sampled = [each for each in shares if each.sampling != measurement.GREEDY]
    by_suite = {each.on: each for each in sampled or shares}
    bounds = {
        measurement.ALL_SUITES: ("accuracy_kept", gates.accuracy_kept),
        **{suite: (f"accuracy_kept_each/{suite}", gates.accuracy_kept_each) for suite in compared.suites},
    }
    for suite, (name, bound) in bounds.items():
        if bound is None or not compared.suites:
            continue
        why = compared.not_measured.get(f"accuracy kept on {suite}")
        if suite not in by_suite and why is not None:
            yield _nothing(name, bound, why)
        elif suite in by_suite or suite == measurement.ALL_SUITES:
            reasons, how = ("tasks of reference", "tasks of target"), {"judged_by": "high", "remark": compared.costliest}
            yield _gate(name, bound, by_suite.get(suite), compared, *reasons, **how)


def _nothing(name: str, wanted: float, reason: str) -> GateResult:
    return GateResult(name=name, wanted=wanted, measured=None, passed=True, nothing_to_compare=True, reason=reason)


def _losses(gates: Gates, compared: GateInputs) -> Iterator[GateResult]:
    for name, bound, of, against in (
        ("loss_above_base", gates.loss_above_base, "target", "base"),
        ("loss_above_champion", gates.loss_above_champion, "target", measurement.CHAMPION),
        ("loss_above_teacher", gates.loss_above_teacher, stage("student_model").role, ""),
    ):
        if bound is None or (not against and not compared.student):
            continue
        if against == measurement.CHAMPION and (nothing := _champion(compared, name, bound, "target", most=True)) is not None:
            yield nothing
            continue
        other = {"against": against} if against else {}
        increase = find(compared.measurements, "loss_increase", of=of, **other)
        yield _gate(name, bound, increase, compared, f"loss of {against or of}", judged_by="high", bound="most")


def _accuracies(gates: Gates, compared: GateInputs) -> Iterator[GateResult]:
    """A gate for each suite that was asked, over sampled answers where there are some, else over greedy ones."""
    for against, margin in (("base", gates.accuracy_below_base), (measurement.CHAMPION, gates.accuracy_below_champion)):
        if margin is None or not compared.suites:
            continue
        name = f"accuracy_below_{against}"
        if against == measurement.CHAMPION and (nothing := _champion(compared, name, -margin, "target")) is not None:
            yield nothing
            continue
        for suite in compared.suites:
            gained = [each for each in compared.measurements if each.what == "accuracy_gain" and each.against == against]
            on_suite = [each for each in gained if each.on == suite]
            sampled = [each for each in on_suite if each.sampling != measurement.GREEDY]
            reasons = suite, f"tasks of {against}", "tasks of target"
            yield _gate(f"{name}/{suite}", -margin, next(iter(sampled or on_suite), None), compared, *reasons, judged_by="low")


def _preferences(gates: Gates, compared: GateInputs) -> Iterator[GateResult]:
    """What preference training changed. Answers may become neither longer nor shorter than the bound. Without a held-out pair
    there is nothing to compare."""
    if not compared.preference:
        return
    by_what = {each.what: each for each in compared.measurements if each.on == measurement.HELD_OUT_PAIRS}
    without = compared.not_measured.get(measurement.HELD_OUT_PAIRS, "")
    ratio, least = by_what.get("length_ratio"), 1 / (gates.length_ratio or 1)
    for name, bound, measured, way, judged_by in (
        ("preference_accuracy", gates.preference_accuracy, by_what.get("preference_accuracy"), "least", "low"),
        ("win_rate", gates.win_rate, by_what.get("win_rate"), "least", "high"),
        ("length_ratio/longer", gates.length_ratio, ratio, "most", "value"),
        ("length_ratio/shorter", gates.length_ratio and least, ratio, "least", "value"),
        ("divergence_from_parent", gates.divergence_from_parent, by_what.get("divergence_from_parent"), "most", "high"),
    ):
        why = without or (compared.not_measured.get(name, "") if name == "win_rate" else "")
        unjudged = name == "win_rate" and measured is None and (without or why == measurement.NO_JUDGE)
        if bound is None or unjudged:  # without pairs, preference_accuracy says so
            continue
        if measured is None and why:
            yield _nothing(name, bound, why)
        else:
            reasons = name.partition("/")[0], "preference_accuracy"
            yield _gate(name, bound, measured, compared, *reasons, bound=way, judged_by=judged_by)


def _rewards(gates: Gates, compared: GateInputs) -> Iterator[GateResult]:
    """What training on rewards gained on held-out prompts."""
    if compared.rft and gates.rft_gain is not None:
        name, gain = "rft_gain", find(compared.measurements, "rft_gain")
        if (without := compared.not_measured.get(measurement.HELD_OUT_PROMPTS, "")) and gain is None:
            yield _nothing(name, gates.rft_gain, without)
        else:
            yield _gate(name, gates.rft_gain, gain, compared, name, bound="least", judged_by="low")


def _acceptance(gates: Gates, compared: GateInputs) -> Iterator[GateResult]:
    if compared.drafter is None:
        return
    whats: tuple[measurement.What, ...] = ("acceptance_length", "acceptance_gain")
    for what in whats:
        if (bound := getattr(gates, what)) is not None:
            yield _gate(what, bound, _as_logged(compared, what), compared, "acceptance", judged_by="low")
    if (margin := gates.acceptance_below_champion) is not None:
        name, gain = "acceptance_below_champion", _as_logged(compared, "acceptance_gain", measurement.CHAMPION)
        yield _champion(compared, name, -margin, "drafter") or _gate(
            name, -margin, gain, compared, f"acceptance of {measurement.CHAMPION}", "acceptance", judged_by="low"
        )


def _as_logged(compared: GateInputs, what: measurement.What, against: str = "") -> Measurement | None:
    """Of the release's drafter, sampled as the traffic is; in reports without that, at one temperature. against: the champion,
    else a lookup."""
    of_it = [each for each in compared.measurements if (each.what, each.of) == (what, compared.drafter)]
    of_it = [each for each in of_it if (each.against == measurement.CHAMPION) == (against == measurement.CHAMPION)]
    ways = (measurement.AS_LOGGED, measurement.at_temperature(compared.temperature))
    return next((each for way in ways for each in of_it if each.sampling == way), None)


def _served(gates: Gates, compared: GateInputs) -> Iterator[GateResult]:
    """What a real server loaded and said, if the recipe asked for one; with the drafting that the release serves."""
    asked = compared.in_server.get("forms", {})
    if measurement.TARGET not in asked:
        return
    as_released = next((form for form in (compared.served_form, measurement.WITH_DRAFTER) if form in asked), measurement.TARGET)
    missed_already = ""
    wanted: tuple[tuple[measurement.What, float | None, str, str], ...] = (
        ("served_agreement", gates.served_agreement, as_released, "least"),
        ("served_distance", gates.served_distance, measurement.TARGET, "most"),
    )
    for name, bound, of, direction in wanted:
        if bound is None:
            continue
        measured = find(compared.measurements, name, of=of)
        unknown = compared.not_measured.get(f"served_agreement of {of}")
        why = compared.not_measured.get(in_a_server(of), "")
        if measured is None and name == "served_agreement" and unknown is not None:
            yield _nothing(name, bound, unknown)
        elif measured is None and why and why == missed_already:  # one gate says it
            yield _nothing(name, bound, "the server did not load the model, as gate served_agreement says")
        else:
            missed_already = why
            yield _gate(name, bound, measured, compared, in_a_server(of), name, bound=direction, remark=MEND_SERVER)


def _erased(gates: Gates, compared: GateInputs) -> Iterator[GateResult]:
    if gates.erased_rows is not None:
        yield GateResult(
            name=ERASED_ROWS,
            wanted=gates.erased_rows,
            measured=compared.erased_rows,
            passed=True,
            bound="most",
            unit="rows",
            of="target and drafter",
            remark="run the recipe again, which trains without these rows, and release what it makes",
        )


def _champion(
    compared: GateInputs, name: str, wanted: float, model: Literal["target", "drafter"], most: bool = False
) -> GateResult | None:
    """The result of a gate against a champion that does not exist, cannot be read, or has no other `model`; None if there is
    one to compare with."""
    shared = {"name": name, "wanted": wanted, "measured": None, "against": measurement.CHAMPION}
    shared["bound"] = "most" if most else "least"
    champion = compared.champion
    if champion is None:
        nothing = "no other release was served yet"
    elif champion.problem:
        return GateResult(**shared, passed=False, reason=champion.problem)
    else:
        nothing = champion.no_target if model == "target" else champion.no_drafter
    return GateResult(**shared, passed=True, nothing_to_compare=True, reason=nothing) if nothing else None


def _gate(
    name: str, wanted: float, measured: Measurement | None, compared: GateInputs, *reasons: str, **how: Any
) -> GateResult:
    """A gate over a measurement. reasons: keys of `not_measured` that explain a missing one."""
    if measured is None:
        reason = next((compared.not_measured[key] for key in reasons if key in compared.not_measured), NOT_IN_REPORT)
        return GateResult(name=name, wanted=wanted, measured=None, passed=False, reason=reason, **how)
    shown: dict[str, Any] = {"passed": True, "low": measured.low, "high": measured.high}
    if how.get("judged_by") and measured.low is None:
        is_lenient = (how.get("bound", "least"), how["judged_by"]) == ("least", "high")
        shown = {"passed": is_lenient, "reason": f"one {'row' if measured.n < 2 else 'session'} has no interval"}
    shown |= {each: getattr(measured, each) for each in ("of", "against", "on", "sampling", "unit", "counted")}
    return GateResult(name=name, wanted=wanted, measured=measured.value, rows=measured.n, **shown, **how)


def _judged(gate: GateResult) -> GateResult:
    problem = gate_problem(gate)
    why = problem.removeprefix(f"gate {gate.name}: ") if problem else gate.held
    return gate.model_copy(update={"passed": problem is None, "why": why})
