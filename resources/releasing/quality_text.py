"""What an evaluation says of a release's quality, in sentences: at the end of `millrace run`, and on the asset's page.

Differences are served model - other model; losses are in nats per answer token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from model_ops.evaluation import ALL_SUITES, AS_LOGGED, HELD_OUT, REFERENCE, Measurement, find
from model_ops.jobs import counted
from resources.releasing.worth import gains

MOST = 5
"""Most measures that are named for each model that is compared with."""
OTHERS = {"base": "the base model", "champion": "the champion"}


def quality_sentences(found: Sequence[Measurement]) -> Iterator[tuple[str, str]]:
    """A name ("" where it is that of the line before) and a sentence: the served model against the base and the champion, on
    held-out sessions and suites, and what further trainings gained; what quantization costs; the drafters' acceptance as
    traffic is sampled."""
    for against in OTHERS:
        for each in gains(found, against)[-MOST:]:
            other = OTHERS.get(each.measured.against, "the model before")
            yield "quality" if against == "base" else "", f"{each.text}, against {other}"
    recovery, kept = (
        next((each for each in found if each.what == what and each.against == REFERENCE and each.on == on), None)
        for what, on in (("recovery", HELD_OUT), ("accuracy_kept", ALL_SUITES))
    )
    if recovery and find(found, "divergence", against=REFERENCE):
        scores = f", and {_interval(kept, 'z.3f')} of the suites' score on {counted(kept.n, 'item')}" if kept else ""
        yield "quantized", f"keeps {_interval(recovery, 'z.4f')} of the unquantized model's likelihood of answers{scores}"
    lengths = [each for each in found if each.what == "acceptance_length" and each.sampling == AS_LOGGED and not each.against]
    if lengths:
        best = max(lengths, key=lambda each: each.value)
        rest = ", ".join(f"{each.of} {each.value:.2f}" for each in lengths if each is not best)
        yield (
            "acceptance",
            f"{best.of}: {_interval(best, '.2f')} tokens per forward pass, sampled as logged{f'; {rest}' if rest else ''}",
        )


def _interval(found: Measurement, digits: str) -> str:
    interval = "" if found.low is None else f" (95 %: {found.low:{digits}} to {found.high:{digits}})"
    return f"{found.value:{digits}}{interval}"
