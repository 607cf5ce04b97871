"""What an evaluation says of a release's quality, in sentences: at the end of `millrace run`, and on the asset's page.

Differences are served model - other model; losses are in nats per answer token.
"""

from collections.abc import Iterator, Sequence

from model_ops.evaluation import ALL_SUITES, AS_LOGGED, HELD_OUT, REFERENCE, Measurement, find
from model_ops.jobs import counted
from resources.releasing.worth import gains

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
        scores = (
            f", and {_interval(accuracy, 'z.3f')} of the suites' score on {counted(accuracy.n, 'item')}" if accuracy else ""
        )
        yield "quantized", f"keeps {_interval(recovery, 'z.4f')} of the unquantized model's likelihood of answers{scores}"
    lengths = [
        each for each in measurements if each.what == "acceptance_length" and each.sampling == AS_LOGGED and not each.against
    ]
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
