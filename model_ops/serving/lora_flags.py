"""vLLM's flags for LoRA adapters on one base model.

    lora_words(rank=12, adapters=1)                     # --enable-lora --max-lora-rank 16 --max-loras 1 --max-cpu-loras 1
    module_words({"tutor": "/lake/releases/..."})       # --lora-modules tutor=/lake/releases/...
    served_rank(12)                                     # 16

vLLM 0.32 (vllm/config/lora.py) takes one of these ranks as its maximum, and adapters of any lower rank. Importing this file
imports no torch."""

from collections.abc import Mapping, Sequence

MAX_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
RANK_FLAG = "--max-lora-rank"
LOADS_AT_RUNTIME = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""Environment in which vLLM answers /v1/load_lora_adapter and /v1/unload_lora_adapter."""
SEVERAL_PROCESSES = ("--api-server-count", "-asc", "--data-parallel-size", "-dp")
"""Flags that start several server processes: vLLM loads an adapter into the one that got the request."""


def served_rank(rank: int) -> int:
    """The smallest maximum that vLLM takes for adapters of this rank. Raises ValueError above the largest."""
    maximum = next((each for each in MAX_RANKS if each >= rank), None)
    if maximum is None:
        raise ValueError(
            f"its adapter has rank {rank}, and vLLM serves ranks up to {MAX_RANKS[-1]}: train it with a lower lora.rank"
        )
    return maximum


def lora_words(rank: int, adapters: int) -> list[str]:
    """rank: of the largest adapter. adapters: how many a step of the server may mix, and as many as are in memory."""
    return ["--enable-lora", RANK_FLAG, str(served_rank(rank)), "--max-loras", str(adapters), "--max-cpu-loras", str(adapters)]


def module_words(places: Mapping[str, str]) -> list[str]:
    """places: directories of adapters by the name that requests call them by."""
    return ["--lora-modules", *(f"{name}={place}" for name, place in places.items())]


def given_rank(words: Sequence[str]) -> int | None:
    """The maximum rank that a command line names; None if it names none. Raises ValueError for one that is no number."""
    rank = None
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") == RANK_FLAG:
            value = value if equals else next(iter(words[place + 1 :]), "")
            if not value.isdigit():
                raise ValueError(f"{RANK_FLAG} {value}: give one of {', '.join(map(str, MAX_RANKS))}")
            rank = int(value)
    return rank
