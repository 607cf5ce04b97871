"""What an evaluation says of a release's quality, in sentences: at the end of `millrace run`, and on the asset's page.

    for name, text in quality_sentences(measurements): ...     # ("acceptance", "eagle3: 2.90 (95 %: 2.60 to 3.10) tokens ...")

Differences are served model - other model; losses are in nats per answer token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from model_ops.evaluation import ALL_SUITES, AS_LOGGED, HELD_OUT, REFERENCE, TARGET, Measurement, find
from model_ops.jobs import counted

MOST_SUITES = 3
"""Most suites that are named for each model that is compared with."""
OTHERS = {"base": "the base model", "champion": "the champion"}


def quality_sentences(found: Sequence[Measurement]) -> Iterator[tuple[str, str]]:
    """A name ("" where it is that of the line before) and a sentence: the served model against the base and the champion, on
    held-out sessions and suites; what quantization costs; what preference training changed; the drafters' acceptance as traffic
    is sampled."""
    for against, other in OTHERS.items():
        of_target = [each for each in found if (each.of, each.against) == (TARGET, against)]
        for each in of_target:
            if each.what == "loss_increase":
                yield (
                    "quality" if against == "base" else "",
                    f"loss of held-out answers {_interval(each, '+z.4f')} nats per token against {other} "
                    f"({_told(each)}; {counted(each.n, 'row')})",
                )
        for each in [each for each in of_target if each.what == "accuracy_gain"][:MOST_SUITES]:
            yield "", f"{each.on}: score {_interval(each, '+z.3f')} against {other}"
    recovery, kept = (
        next((each for each in found if each.what == what and each.against == REFERENCE and each.on == on), None)
        for what, on in (("recovery", HELD_OUT), ("accuracy_kept", ALL_SUITES))
    )
    if recovery and find(found, "divergence", against=REFERENCE):
        scores = f", and {_interval(kept, 'z.3f')} of the suites' score on {counted(kept.n, 'item')}" if kept else ""
        yield "quantized", f"keeps {_interval(recovery, 'z.4f')} of the unquantized model's likelihood of answers{scores}"
    for each in found:
        if each.what == "preference_accuracy":
            yield (
                "preference",
                f"the chosen answer gained more in {_interval(each, '.3f')} of {counted(each.n, 'held-out pair')}, "
                f"against {each.against}",
            )
        if each.what == "rft_gain":
            yield (
                "rewards",
                f"share of passed answers {_interval(each, '+z.3f')} on {counted(each.n, 'held-out prompt')}, "
                f"against {each.against}",
            )
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


def _told(found: Measurement) -> str:
    """What a difference of losses says about the model."""
    if found.low is None or found.high is None:
        return "no interval"
    return "better" if found.high < 0 else "worse" if found.low > 0 else "no difference beyond chance"
