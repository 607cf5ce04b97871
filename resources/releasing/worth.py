"""Whether a release is better than its base and than what is served: the first sentence of its pages, and of status.

A difference counts from LEAST_GAIN on, at the unfavourable end of its 95 % interval."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from model_ops.evaluation import (
    ALL_SUITES,
    AS_LOGGED,
    CHAMPION,
    GREEDY,
    HELD_OUT,
    LEAST_GAIN,
    REFERENCE,
    TARGET,
    Measurement,
    find,
    measurement,
    measurements_of,
)
from model_ops.jobs import counted
from resources.releasing.champion import Champion

LOOPING = 0.1
"""Share of answers that repeat themselves, from which the sentence names it."""
UNLIKELY = 50.0
"""Perplexity of held-out answers, from which the sentence names it: that of models that speak is below 20."""
LOSS: measurement.What = "loss_increase"
SHARES = {"win_rate": "win rate by the judge", "preference_accuracy": "share of held-out pairs whose chosen answer gained more"}
"""Measures that are better above one half, and their names."""


class Gain(NamedTuple):
    """A measured difference of the served model against another one. gain: the same, so that above 0 is better."""

    name: str
    measured: Measurement
    gain: Measurement
    scores: tuple[Measurement, ...] = ()
    """Of a suite: the served model's own score, and the other's."""

    @property
    def text(self) -> str:
        """`score on maths 0.620 (0.53 to 0.71) instead of 0.500 (0.40 to 0.60): +0.120 (95 %: +0.05 to +0.19; 100 items)`."""
        measured, digits = self.measured, "z.3f" if self.measured.what in SHARES else "+z.3f"
        interval = f"95 %: {measured.low:{digits}} to {measured.high:{digits}}; " if measured.low is not None else ""
        unit = f" {measured.unit}" if measured.what == LOSS else ""
        before = f" against {measured.against}" if measured.against not in ("base", CHAMPION) else ""
        items = counted(measured.n, measured.counted.removesuffix("s"))
        sides = " instead of ".join(f"{each.value:.3f} ({each.low:.3f} to {each.high:.3f})" for each in self.scores)
        sides = f" {sides}:" if sides else ""
        return f"{self.name}{sides} {measured.value:{digits}}{unit} ({interval}{items}{before})"


def reaches(gain: Measurement, least: float) -> bool:
    return gain.low is not None and gain.low >= least


def gains(measurements: Sequence[Measurement], against: str) -> list[Gain]:
    """against: base or champion. Scores of suites come first, sampled ones where there are some, then what trainings measured
    against the model that they began with, then held-out loss."""
    suites: dict[str, Measurement] = {}
    for each in measurements:
        is_of = each.what == "accuracy_gain" and (each.of, each.against) == (TARGET, against)
        if is_of and (each.on not in suites or suites[each.on].sampling == GREEDY):
            suites[each.on] = each
    moved = find(measurements, "divergence_from_parent")
    is_still = moved is not None and moved.value < LEAST_GAIN  # then the sign of a change by row means nothing
    rest = [
        Gain(name, each, _shifted(each, 1, 0.5 if what in SHARES else 0.0))
        for what, name in {"rft_gain": "share of passed answers", **SHARES}.items()
        for each in measurements
        if each.what == what and against == "base" and not (is_still and what == "preference_accuracy")
    ]
    loss = find(measurements, LOSS, of=TARGET, against=against)
    of_loss = [Gain("held-out loss", loss, _shifted(loss, -1, 0.0))] if loss else []
    of_suites = [Gain(f"score on {suite}", each, each, _scores(measurements, each)) for suite, each in suites.items()]
    return [*of_suites, *rest, *of_loss]


def _scores(measurements: Sequence[Measurement], gain: Measurement) -> tuple[Measurement, ...]:
    """Nothing where one of both has no interval."""
    keys = {"on": gain.on, "sampling": gain.sampling}
    sides = [find(measurements, "accuracy", of=of, **keys) for of in (gain.of, gain.against)]
    both = tuple(each for each in sides if each is not None and each.low is not None)
    return both if len(both) == len(sides) else ()


def _shifted(measurement: Measurement, sign: int, even: float) -> Measurement:
    low, high = (None if end is None else sign * end - even for end in (measurement.low, measurement.high)[::sign])
    return measurement.model_copy(update={"value": sign * measurement.value - even, "low": low, "high": high})


def worth_of(report: Mapping[str, Any], learnt: bool, champion: Champion | None, least: float | None = None) -> str:
    """The sentence. report: report.json. learnt: whether a model was trained. champion: what the release is compared with.
    least: the recipe's gain_over_base."""
    measurements, least, said = measurements_of(report), LEAST_GAIN if least is None else least, []
    ways = {each["sampling"]: each["looping_share"] for each in report.get("acceptance", []) if each["drafter"] == "none"}
    if (share := ways.get(AS_LOGGED, 0.0)) >= LOOPING:
        said.append(f"{share:z.0%} of its held-out answers, sampled as logged, repeat themselves")
    own = find(measurements, "loss", of=TARGET)
    if own is not None and own.value >= math.log(UNLIKELY):
        said.append(
            f"its perplexity on held-out answers is {math.exp(own.value):,.0f}, so answers of its own can hardly make sense"
        )
    said.append(
        _against("its base", gains(measurements, "base"), least)
        if learnt
        else "its models were not trained, so it has no gain over its base to show"
    )
    if champion is None:
        said.append("no release of other models was served before it")
    elif champion.problem or champion.no_target:
        said.append(champion.problem or f"champion {champion.release} has the same target")
    else:
        said.append(_against(f"champion {champion.release}", gains(measurements, CHAMPION), LEAST_GAIN))
    sentence = "; ".join(said)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _against(other: str, gains_: Sequence[Gain], least: float) -> str:
    better = [each for each in gains_ if reaches(each.gain, least)]
    worse = [each for each in gains_ if each.gain.high is not None and each.gain.high <= -LEAST_GAIN]
    listed = ", ".join(each.text for each in worse)
    if better:
        is_loss_alone = len(gains_) > 1 and all(each.measured.what == LOSS for each in better)
        alone = ", which no other measure shows" if is_loss_alone else ""
        return (
            f"measurably better than {other}: {', '.join(each.text for each in better)}{alone}"
            f"{f', but worse: {listed}' if worse else ''}"
        )
    if worse:
        return f"measurably worse than {other}: {listed}"
    return f"no gain over {other} can be shown" + (f": {', '.join(each.text for each in gains_)}" if gains_ else "")


MOST = 5
"""Most measures that are named for each model that is compared with."""
OTHERS = {"base": "the base model", "champion": "the champion"}


def quality_sentences(measurements: Sequence[Measurement]) -> Iterator[tuple[str, str]]:
    """A name ("" where it is that of the line before) and a sentence: the served model against the base and the champion, on
    held-out sessions and suites, and what further trainings gained; what quantization costs; the drafters' acceptance as
    traffic is sampled."""
    for against in OTHERS:
        for each in gains(measurements, against)[-MOST:]:
            other = OTHERS.get(each.measured.against, "the model before")
            yield "quality" if against == "base" else "", f"{each.text}, against {other}"
    recovery, accuracy = (
        next((each for each in measurements if each.what == what and each.against == REFERENCE and each.on == on), None)
        for what, on in (("recovery", HELD_OUT), ("accuracy_kept", ALL_SUITES))
    )
    if recovery and find(measurements, "divergence", against=REFERENCE):
        share = f"{_interval(accuracy, 'z.3f')} of the suites' score on {counted(accuracy.n, 'item')}" if accuracy else ""
        scores = f", and {share}" if share else ""
        yield "quantized", f"keeps {_interval(recovery, 'z.4f')} of the unquantized model's likelihood of answers{scores}"
    wanted = ("acceptance_length", AS_LOGGED, "")
    lengths = [each for each in measurements if (each.what, each.sampling, each.against) == wanted]
    if lengths:
        best = max(lengths, key=lambda each: each.value)
        rest = ", ".join(f"{each.of} {each.value:.2f}" for each in lengths if each is not best)
        yield (
            "acceptance",
            f"{best.of}: {_interval(best, '.2f')} tokens per forward pass, sampled as logged{f'; {rest}' if rest else ''}",
        )


def _interval(measurement: Measurement, digits: str) -> str:
    interval = "" if measurement.low is None else f" (95 %: {measurement.low:{digits}} to {measurement.high:{digits}})"
    return f"{measurement.value:{digits}}{interval}"
