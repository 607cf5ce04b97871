"""Prompts with one instruction on the form of their answer, in the form of IFEval, for benchmarks on real models.

    drawn = draw(prompts=320, held_out=240, other_kinds=100, seed=0)
    python -m benchmarks.instructions        # reads lines of {verifier, text}, writes the grade of each: the peer's reward

What held-out prompts are about, and how they ask, occurs in no training prompt; `other_kinds` have instructions of which no
training prompt has one (a test counts). The verifiers are those of the product (model_ops.tasks).
"""

import json
import random
import sys
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.real_models import answers, asked
from model_ops.tasks import ITEMS, SCORERS

Prompt = dict[str, Any]
_TOPICS = (
    "the moon, green tea, a bicycle, whales, chess, bread, the violin, winter, honey bees, a lighthouse, salt, the piano, "
    "rain, cats, a library, glass, football, coffee, the desert, a bridge, soap, owls, paper, a garden, cheese, the ocean, "
    "trains, maps, wool, a volcano, rice, dolphins, a clock, silk, mountains, chocolate, the drum, snow, horses, a museum, "
    "copper, tennis, spiders, a candle, potatoes, the wind, robots, a kite, pepper, penguins, the alphabet, iron, yoga, "
    "a windmill, apples, the sun, submarines, a compass, cotton, turtles, photography, ice cream, an island, wood, swimming, "
    "lightning, ants, a castle, olive oil, the guitar, autumn, airplanes, a mirror, sugar, elephants, origami, gold, "
    "a waterfall, tomatoes, stars, camels, a ladder, onions, the harp, fog, foxes, a market, clay, rowing, lemons, a cave, "
    "wolves, a tent, butter, the flute, spring, pigeons, a tunnel, tin, hiking, garlic, frogs, a harbour, brass, skiing, mint"
)
TOPICS = tuple(_TOPICS.split(", "))
HELD_OUT_TOPICS = 30
REQUESTS = (
    "Tell me about {}.",
    "Write about {}.",
    "Describe {}.",
    "What should a child know about {}?",
    "Say something about {}.",
)
HELD_OUT_REQUESTS = ("Explain what is interesting about {}.", "Give a short account of {}.")
PHRASES = ("That is all.", "Ask me for more.", "I hope this helps.", "See you soon.", "Is there anything else?")
WORDS = ("people", "world", "time", "small", "often", "light", "water", "long", "old", "work")
AVOIDED = ("and", "is", "are", "of", "in", "it")
LETTERS = "bcfgkpvwy"
MAX_NEW_TOKENS = 64


def _forms(drawn: random.Random) -> dict[str, tuple[str, dict[str, Any]]]:
    """Kind -> (sentence, arguments)."""
    few, words = drawn.choice((2, 3, 4)), drawn.choice((15, 20, 25, 30, 40))
    phrase, word, avoided = drawn.choice(PHRASES), drawn.choice(WORDS), drawn.choice(AVOIDED)
    letter, often = drawn.choice(LETTERS), drawn.choice((1, 2, 3))
    return {
        "punctuation:no_comma": ("Do not use any commas.", {}),
        "change_case:english_lowercase": ("Use lowercase letters only.", {}),
        "startend:quotation": ("Wrap your whole answer in double quotation marks.", {}),
        "length_constraints:number_sentences": (
            f"Write less than {few} sentences.", {"relation": "less than", "num_sentences": few},
        ),
        "length_constraints:number_words": (f"Use less than {words} words.", {"relation": "less than", "num_words": words}),
        "detectable_format:number_bullet_lists": (
            f"Answer with exactly {few} bullet points in markdown, such as: * This is a point.", {"num_bullets": few},
        ),
        "detectable_format:number_highlighted_sections": (
            f"Highlight at least {few - 1} parts in markdown, as *highlighted part*.", {"num_highlights": few - 1},
        ),
        "startend:end_checker": (
            f'Finish with the exact phrase "{phrase}" No other words may follow it.', {"end_phrase": phrase},
        ),
        "keywords:existence": (f"Use the word {word}.", {"keywords": [word]}),
        "keywords:forbidden_words": (f'Do not use the word "{avoided}".', {"forbidden_words": [avoided]}),
        "keywords:letter_frequency": (
            f"The letter {letter} must appear less than {often} times.",
            {"letter": letter, "let_relation": "less than", "let_frequency": often},
        ),
        "detectable_content:number_placeholders": (
            f"Use at least {few - 1} placeholders in square brackets, such as [name].", {"num_placeholders": few - 1},
        ),
        "change_case:english_capital": ("Use capital letters only.", {}),
        "detectable_format:title": ("Give your answer a title in double angular brackets, such as <<title>>.", {}),
        "detectable_content:postscript": ("At the end, add a postscript that starts with P.S.", {"postscript_marker": "P.S."}),
        "detectable_format:json_format": ("Write the whole answer as JSON.", {}),
        "change_case:capital_word_frequency": (
            f"Use at least {few - 1} words in all capital letters.",
            {"capital_relation": "at least", "capital_frequency": few - 1},
        ),
    }  # fmt: skip


KINDS = tuple(_forms(random.Random(0)))
OTHER_KINDS = KINDS[12:]
"""Never trained on."""


class Drawn(NamedTuple):
    """prompts: to train on. held_out: the same kinds about other things, asked in other words. other_kinds: instructions that
    no training prompt has."""

    prompts: list[Prompt]
    held_out: list[Prompt]
    other_kinds: list[Prompt]


def draw(prompts: int, held_out: int, other_kinds: int, seed: int) -> Drawn:
    """Each kind as often; distinct prompts of each part."""
    drawn = random.Random(seed)
    topics = drawn.sample(TOPICS, len(TOPICS))
    unseen, seen = topics[:HELD_OUT_TOPICS], topics[HELD_OUT_TOPICS:]
    return Drawn(
        _prompts(drawn, KINDS[:12], seen, REQUESTS, prompts, "p"),
        _prompts(drawn, KINDS[:12], unseen, HELD_OUT_REQUESTS, held_out, "h"),
        _prompts(drawn, OTHER_KINDS, unseen, HELD_OUT_REQUESTS, other_kinds, "o"),
    )


def _prompts(
    drawn: random.Random, kinds: tuple[str, ...], topics: list[str], requests: tuple[str, ...], count: int, name: str
) -> list[Prompt]:
    found: dict[str, Prompt] = {}
    while len(found) < count:
        kind = kinds[len(found) % len(kinds)]
        sentence, given = _forms(drawn)[kind]
        text = f"{drawn.choice(requests).format(drawn.choice(topics))} {sentence}"
        verifier = {"kind": "ifeval", "instruction_id_list": [kind], "kwargs": [given]}
        found.setdefault(text, {"row_id": f"{name}{len(found)}", "kind": kind, "question": text, "verifier": verifier})
    return list(found.values())


def grade(verifier: dict[str, Any], text: str) -> float:
    """1 where the answer follows the instruction, else 0."""
    kind = verifier["kind"]
    return SCORERS[kind](ITEMS[kind](suite="instructions", item_id="", messages=[], **verifier), text)


def followed(model: Path, prompts: list[Prompt]) -> float:
    """Share of greedy answers that follow their instruction."""
    texts = answers(model, [asked(each["question"]) for each in prompts], MAX_NEW_TOKENS)
    return fmean(grade(each["verifier"], text) for each, text in zip(prompts, texts, strict=True))


def main() -> None:
    for line in sys.stdin:
        print(grade(**json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
