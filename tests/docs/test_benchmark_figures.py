"""Every figure in README's and docs/benchmarks.md's tables is the recorded one: number by number, in order."""

import json
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from benchmarks import seed_intervals

PROJECT = Path(__file__).resolve().parents[2]
README, PAGE = "README.md", "docs/benchmarks.md"
PRODUCTS = ("openai", "anthropic")
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-\d+)?(?!\w)")


class Result:
    """One recorded run: r("tau", "eagle3") walks its figures."""

    def __init__(self, name: str):
        recorded = json.loads((PROJECT / f"benchmarks/results/{name}.json").read_text())
        self.figures = recorded["figures"]
        parts = self.figures.get("measured", {}).values()  # of a benchmark whose parts are recorded one by one
        self.runs = {(part["command"], part["date"][:10]) for part in (recorded, *parts)}
        cpu = recorded["hardware"]["cpu"]
        self.machine = "C" if "amx" in cpu else {"AMD EPYC": "A", "Intel(R)": "B" if "avx512_bf16" in cpu else "D"}[cpu[:8]]

    def __call__(self, *keys):
        found = self.figures
        for key in keys:
            found = found[key]
        return found


def decimals(x: float, digits: int) -> str:
    """Rounded half up, as people round."""
    return str(Decimal(str(x)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def tenth(x: float) -> str:
    return decimals(x, 1)


def hundredth(x: float) -> str:
    return decimals(x, 2)


def percent(x: float, digits: int = 1, sign: bool = True) -> str:
    return f"{Decimal(decimals(Decimal(str(x)) * 100, digits)):{'+' if sign else ''}}"


def about(x: float, digits: int = 3) -> str:
    """Rounded to so many significant digits, with thousands separators."""
    return f"{float(f'{x:.{digits}g}'):,.0f}"


def interval(low: float, high: float, digits: int = 1) -> list[str]:
    return [percent(low, digits, False), percent(high, digits, False)]


def repeated(r: Result, key: str, rounded: Callable[[float], str]) -> list[str]:
    """A median over repeats with its smallest and largest value."""
    return [rounded(x) for x in (r(key), *r("spread", key))]


def preference_figures(kind: str, workload: str, r: Result) -> list[str]:
    found = r(kind, workload)
    spread = found["spread"]["speed_ratio"]
    return [hundredth(x) for x in (found["speed_ratio"], *spread, found["cpu_ratio"], found["memory_ratio"])]


def policy_figures(r: Result) -> list[str]:
    gaps = r("reward_gaps")
    figures = [r("samples_ratio"), *r("spread", "samples_ratio"), r("cpu_ratio"), r("memory_ratio"), r("reward_gap")]
    return [hundredth(x) for x in (*figures, min(gaps), max(gaps))]


def gain_figures(r: Result) -> list[str]:
    methods = ("semi_online_dpo_sft", "semi_online_sft", "dpo_sft", "dpo", "kto", "apo_zero", "semi_online_dpo")
    gains = [r("gain_over_sft", method) for method in methods]
    shares = (r("chosen_right")[0], r("start")[0], r("success", "sft")[0])
    return [hundredth(x) for x in (*shares, *chain.from_iterable(gains))]


def reward_figures(source: str, r: Result) -> list[str]:
    names = ("longer_wins", "most_training_pairs", "ece", "calibrated_ece")
    accuracy = [r(source, "accuracy", key) for key in ("mean", "low", "high")]
    return [hundredth(x) for x in (*accuracy, *(r(source, name, "mean") for name in names))]


def async_figures(r: Result) -> list[str]:
    ratios = [hundredth(x) for name in ("speed_ratio", "judge_speed_ratio", "reward_gap", "judge_reward_gap") for x in r(name)]
    counts = [str(r(name)) for name in ("largest_staleness", "kills", "lost", "duplicated")]
    return [*ratios, hundredth(r("staleness")), *counts]


def rollout_figures(r: Result) -> list[str]:
    ratios = [r("by_batch", batch, drafter, "ratio")[0] for drafter in ("ngram", "suffix", "eagle3") for batch in ("128", "16")]
    return [*(hundredth(x) for x in ratios), hundredth(r("exact"))]


def learnt_figures(task: str, r: Result) -> list[str]:
    sides = [hundredth(r(task, side)[0]) for side in ("start", "end", "ceiling")]
    return [*sides, hundredth(r(task, "share")), hundredth(r(task, "worst_share"))]


def largest_gaps(losses: dict[str, dict[str, float]]) -> list[str]:
    return [f"{max(each[gap] for each in losses.values()):.0e}".replace("e-0", "e-") for gap in ("value_gap", "gradient_gap")]


def tau(r: Result, drafter: str, temperature: float) -> list[str]:
    [row] = [row for row in r("acceptance") if (row["drafter"], row["temperature"]) == (drafter, temperature)]
    return [hundredth(row[key]) for key in ("tau", "tau_low", "tau_high")]


def speed(r: Result, target: str, concurrency: int) -> list[str]:
    rows = {(x["target"], x["temperature"], x["concurrency"]): x["ratio"] for x in r("rows")}
    return [hundredth(rows[target, temperature, concurrency]) for temperature in (0, 1)]


def losses(r: Result, *cells: tuple[str, str]) -> list[str]:
    return [hundredth(r("tau", drafter, loss, temperature)) for drafter, loss in cells for temperature in ("t0", "t1")]


def gains(r: Result) -> list[str]:
    return [percent(r("lk_gain_t1", "eagle3")), *interval(*seed_intervals.losses(r.figures)["eagle3"])]


def head_gains(r: Result, peer: str, side: str) -> list[str]:
    """Gain in acceptance length with its interval, at T = 0 and 1."""
    widened = seed_intervals.peers(r.figures)[peer][side]
    return [x for way, (middle, _, _) in r(peer, "tau_gain", side).items() for x in (percent(middle), *interval(*widened[way]))]


def workload_gains(r: Result) -> list[str]:
    numbers = []
    for name in ("math", "airline", "code"):
        middle, low, high = r("gains", name, "t1")
        numbers += [percent(middle, 0) if round(100 * middle) else "0", *interval(low, high, 0)]
    return numbers


def peer(tool: str) -> str:
    """The name without the version."""
    return tool.split()[0]


def queries(r: Result) -> int:
    return r("file", "reader_queries") + r("s3", "reader_queries")


DRAFTER_PEERS = ("speculators", "specforge")
Claim = tuple[str, str, str, Callable[[Result], list[str]]]
PEER_SCHEMES = (
    ("gptq", "int4 by GPTQ", hundredth),
    ("awq", "int4 by AWQ", hundredth),
    ("w8a8", "int8 rounded", lambda x: decimals(x, 3)),
)
"""Comparison of quantize_peers, the beginning of its row, and how its processor time is rounded."""

CLAIMS: list[Claim] = [
    (
        PAGE,
        "records read =",
        "demo",
        lambda r: [
            f"{r('rows', 'read'):,}",
            f"{r('rows', 'kept'):,}",
            f"{sum(r('rows', 'dropped').values())}",
            f"{sum(r('rows', 'quarantined').values())}",
        ],
    ),
    (PAGE, "held-out loss (nats/token)", "demo", lambda r: [f"{r('loss', name):.3f}" for name in ("base", "sft")]),
    (PAGE, "student with 7 of 10 layers", "demo", lambda r: [decimals(r("loss", "student"), 3)]),
    (PAGE, "the same student by plain SFT", "demo", lambda r: [f"{r('loss', 'student_by_plain_sft'):.3f}"]),
    (PAGE, "recovery of the int8 model", "demo", lambda r: [f"{r('recovery'):.4f}"]),
    (PAGE, "tau at T = 1, K = 3", "demo", lambda r: tau(r, "eagle3", 1) + tau(r, "ngram", 1)),
    (PAGE, "tau at T = 0, K = 3", "demo", lambda r: tau(r, "eagle3", 0) + tau(r, "ngram", 0)),
    (PAGE, "seconds in all; peak memory", "demo", lambda r: [f"{r('seconds_in_all'):.0f}", tenth(r("peak_memory_mb") / 1000)]),
    *(
        (PAGE, stage, "demo", lambda r, stage=stage: [f"{r('seconds', stage):.0f}", str(r("budget", stage))])
        for stage in (
            "traffic",
            "interactions",
            "cleaned_interactions",
            "base_model",
            "sft_model",
            "student_model",
            "speculator_dataset",
            "speculator",
            "evaluation_report",
            "around the steps",
        )
    ),
    (
        PAGE,
        "How long does ingest",
        "ingest",
        lambda r: [
            hundredth(r("ratio")),
            tenth(r("seconds", "ingest")),
            about(r("rows_per_second"), 2),
            tenth(r("peak_mib") / 1024),
        ],
    ),
    (
        PAGE,
        "How fast and how exact are near",
        "near_duplicates",
        lambda r: [about(r("docs_per_s")), f"{r('mb_per_s'):.0f}", f"{r('recall'):.3f}", str(r("precision")), str(r("f1"))],
    ),
    (PAGE, "Does a new day cost", "new_day", lambda r: [hundredth(r("ratio"))]),
    (
        PAGE,
        "How long does the grouping",
        "new_day",
        lambda r: [tenth(r("grouping_s_per_100k")), tenth(r("grouping_first_s_per_100k"))],
    ),
    (PAGE, "How fast are 10,000", "small_objects", lambda r: [hundredth(r("ratio")), f"{r('objects_per_s'):.0f}"]),
    (PAGE, "How long does listing", "small_objects", lambda r: [f"{r('listing_keys') / r('listing_keys_per_s'):.0f}"]),
    (PAGE, "Are tables whole", "ingest_faults", lambda r: [str(r("reader_errors")), f"{queries(r):,}", str(r("lost_rows"))]),
    (PAGE, "How fast are rules", "clean", lambda r: [about(r("rows_per_s"))]),
    (
        PAGE,
        "Logs of 11,933 real",
        "curation_peers",
        lambda r: [
            tenth(r("peers", peer, ratio))
            for ratio in ("speed_ratio", "processor_ratio")
            for peer in ("datatrove", "datajuicer")
        ],
    ),
    (
        PAGE,
        "How long does a `millrace run`",
        "incremental",
        lambda r: [hundredth(r("ratio")), tenth(r("seconds_1000")), tenth(r("seconds_10"))],
    ),
    (
        PAGE,
        "Real conversations, 200 sessions",
        "drift",
        lambda r: [
            *(hundredth(days) for days in r("delay_days").values()),
            tenth(r("false_alarms_per_1000_days")),
            hundredth(r("acceptance", "delay_days")),
            hundredth(r("acceptance", "false_alarms_per_1000_days")),
        ],
    ),
    (PAGE, "How long does it take to erase", "forget", lambda r: [tenth(r("seconds")), str(r("leftovers"))]),
    (
        PAGE,
        "Simulated endpoints after a promotion",
        "release_watch",
        lambda r: [
            str(sum(kind["rolled_back"] for kind in r("rolled_back_by_kind").values())),
            *(
                tenth(r("hours", fall))
                for fall in (
                    "acceptance length -15 %",
                    "acceptance length -30 %",
                    "no draft accepted",
                    "requests without an answer 1 % to 10 %",
                    "broken answers 2 % to 10 %",
                )
            ),
            percent(r("found", "acceptance length -15 %"), 0, False),
        ],
    ),
    (PAGE, "How long does it take to list", "lineage", lambda r: [hundredth(r("seconds")), hundredth(r("cpu_s"))]),
    (PAGE, "How long does ingest of 200,000", "lake_s3", lambda r: [hundredth(r("ratio_ingest")), str(r("lost"))]),
    (
        PAGE,
        "While the release of a toy",
        "switch",
        lambda r: [str(r("failed")), f"{r('requests'):,}", hundredth(r("p99_ratio"))] if r("switches") == 10 else [],
    ),
    (
        PAGE,
        "The demo's release (without",
        "release_served",
        lambda r: (
            [percent(r("acceptance_gap")), hundredth(r("parity")), hundredth(r("schema_valid"))]
            if r("ok") and r("verified")
            else []
        ),
    ),
    (
        PAGE,
        "Three workloads of a small real model",
        "drafting_choice",
        lambda r: (
            [str(r("chosen_is_best")), str(r("of")), hundredth(r("lowest_ratio"))]
            if percent(r("spread"), 0, False) == "17"
            else []
        ),
    ),
    (
        PAGE,
        "One tick of the sensors",
        "sensor_scale",
        lambda r: (
            [tenth(r("tick_s")), decimals(r("new_tick_s"), 0), decimals(r("first_tick_s"), 0)]
            if (r("workloads"), r("objects")) == (1_000, 100_000)
            else []
        ),
    ),
    (
        PAGE,
        "The demo gets one more day",
        "retrain_cost",
        lambda r: [hundredth(r("share")), about(r("found_s"), 2), percent(r("predicted_gain")), percent(r("gain"))],
    ),
    (
        PAGE,
        "A simulated week",
        "week",
        lambda r: (
            [
                str(r("failed_requests")),
                str(r("requests")),
                *(hundredth(r(name)) for name in ("tau_first", "tau_shifted", "tau_last")),
                hundredth(r("quality_first")),
                hundredth(r("quality_last")),
                *(str(r("budget")[name]) for name in ("runs", "runs_allowed")),
            ]
            if (r("days"), sum(r("kills").values()), len(r("approved_in_the_week"))) == (7, 5, 1)
            else []
        ),
    ),
    (
        PAGE,
        "What share of a toy model's",
        "structured",
        lambda r: (
            [
                *(hundredth(kind["valid_drafted"]) for kind in r("kinds").values()),
                hundredth(max(kind["valid_free"] for kind in r("kinds").values())),
            ]
            if all(kind["same_greedy"] == 1 for kind in r("kinds").values()) and r("prompts") == 8
            else []
        ),
    ),
    (PAGE, "What does that front add", "front", lambda r: [hundredth(r("added_ms_p50")), hundredth(r("added_ms_p99"))]),
    (
        PAGE,
        "What does the capture layer add",
        "capture",
        lambda r: [
            hundredth(r("added_ms_p50")),
            hundredth(r("added_ms_p99")),
            f"{r('requests_per_s'):,}",
            str(r("lost")),
            f"{r('answered'):,}",
        ],
    ),
    (PAGE, "Of 193 changes to", "tamper", lambda r: [str(r("refused"))]),
    (PAGE, "Of 20 kills while a release", "publish_faults", lambda r: [str(r("incomplete")), str(r("completed"))]),
    (PAGE, "Of 200 changes to", "aliases", lambda r: [str(r("disk", "lost")), str(r("s3", "lost"))]),
    (
        PAGE,
        "Do 10 readers ever",
        "readers",
        lambda r: [
            str(r("errors") + r("s3", "errors")),
            str(r("inconsistent") + r("s3", "inconsistent")),
            f"{r('queries') + r('s3', 'queries'):,}",
            str(r("commits") + r("s3", "commits")),
        ],
    ),
    (
        PAGE,
        "How long does it take to make 200,000",
        "dataset_build",
        lambda r: [hundredth(r("ratio")), decimals(r("seconds"), 0), tenth(r("peak_mib") / 1024)],
    ),
    (PAGE, "What does a new day's dataset", "new_day_dataset", lambda r: [hundredth(r("ratio"))]),
    (
        PAGE,
        "How many megabytes",
        "incremental",
        lambda r: [tenth(r("megabytes_ratio")), decimals(r("megabytes_1000"), 0), decimals(r("megabytes_10"), 0)],
    ),
    (PAGE, "How exact is the detection", "pii", lambda r: [str(r("precision")), str(r("recall"))]),
    (PAGE, "millrace", "near_duplicates", lambda r: [f"{r('docs_per_s'):,}", f"{r('docs_per_s_one_core'):,}", str(r("f1"))]),
    *(
        (
            PAGE,
            tool,
            "near_duplicates",
            lambda r, tool=tool: [
                f"{r('peers', peer(tool), 'docs_per_s'):,}",
                f"{r('peers', peer(tool), 'docs_per_s_one_core'):,}",
                hundredth(r("peers", peer(tool), "f1")),
            ],
        )
        for tool in ("rensa 0.5.0", "datasketch 2.0.0", "text-dedup 0.4.0", "datatrove 0.10.1")
    ),
    (
        PAGE,
        "Tokens/s of fine-tuning",
        "trainer_vs_trl",
        lambda r: [
            *repeated(r, "ratio_small", tenth),
            about(r("tokens_per_s_small", "ours")),
            about(r("tokens_per_s_small", "trl")),
        ],
    ),
    (PAGE, "The same by processor seconds", "trainer_vs_trl", lambda r: repeated(r, "cpu_ratio_small", tenth)),
    (
        PAGE,
        "Peak memory, 10M",
        "trainer_vs_trl",
        lambda r: [*repeated(r, "memory_ratio_small", hundredth), hundredth(r("memory_ratio_small_to_leanest"))],
    ),
    (
        PAGE,
        "With checkpointing here",
        "trainer_vs_trl",
        lambda r: [
            *repeated(r, "ratio_small_checkpointed", tenth),
            *repeated(r, "cpu_ratio_small_checkpointed", tenth),
            *repeated(r, "memory_ratio_small_checkpointed", hundredth),
        ],
    ),
    (
        PAGE,
        "Share of the measured bf16",
        "trainer_vs_trl",
        lambda r: [hundredth(r(f"rate_share_small{which}")) for which in ("", "_without_checkpointing")],
    ),
    (
        PAGE,
        "Held-out loss after the same",
        "trainer_vs_trl",
        lambda r: [f"{r('held_out_loss', k):.3f}" for k in ("before", "ours", "trl")],
    ),
    (
        PAGE,
        "103M parameters",
        "trainer_vs_trl",
        lambda r: [
            *repeated(r, "ratio_large", tenth),
            *repeated(r, "cpu_ratio_large", tenth),
            *repeated(r, "memory_ratio_large", hundredth),
        ],
    ),
    (
        PAGE,
        "The same with checkpointing here",
        "trainer_vs_trl",
        lambda r: [
            *repeated(r, "ratio_large_checkpointed", tenth),
            *repeated(r, "cpu_ratio_large_checkpointed", tenth),
            *repeated(r, "memory_ratio_large_checkpointed", hundredth),
        ],
    ),
    (PAGE, "Time of a LoRA step", "lora_step", lambda r: [hundredth(r(key)) for key in ("ratio", "ratio_low", "ratio_high")]),
    (
        PAGE,
        "Model families in which every one of the 8",
        "families",
        lambda r: [str(len(r("whole"))), str(r("ops", "int8")[1])] if len(r("ops")) == 8 else [],
    ),
    (PAGE, "Packing: rows needed", "packing", lambda r: [f"{r('efficiency', name):.3f}" for name in ("gsm8k", "tau_airline")]),
    (PAGE, "Packing a million", "packing", lambda r: [tenth(r("seconds_per_million"))]),
    (
        PAGE,
        "4 processes in 7 mesh",
        "parallel",
        lambda r: (
            ["2e-7", "9e-7"] if r("max_loss_gap") <= 2e-7 and r("max_param_gap") <= 9e-7 and len(r("layouts")) == 7 else []
        ),
    ),
    (
        PAGE,
        "10 kills with SIGKILL, 7",
        "resume",
        lambda r: (
            [str(r("checkpoint_every"))]
            if r("identical") and r("kills") == 10 and r("during_saves") == 7 and r("steps_lost") <= r("checkpoint_every")
            else []
        ),
    ),
    (
        PAGE,
        "Overhead of saving 676 MB every 50",
        "resume",
        lambda r: (
            [percent(r("save_overhead"), 1, False), *interval(min(r("overheads")), max(r("overheads")))]
            if (round(r("saved_mb")), r("interval_steps")) == (676, 50)
            else []
        ),
    ),
    (
        PAGE,
        "Answers taught as a server",
        "templates",
        lambda r: [str(sum(kind[result] for kind in r("kinds").values())) for result in ("learnt", "refused", "wrong")],
    ),
    (
        PAGE,
        "Predicted peak memory, 15",
        "plan",
        lambda r: [percent(r("median_error"), 1, False), percent(r("worst_error"), 1, False)],
    ),
    (PAGE, "Loss and gradients of a head", "loss_head", lambda r: [tenth(r("over_torch")), tenth(r("over_plain"))]),
    (
        PAGE,
        "Is greedy text in vLLM",
        "drafter_served",
        lambda r: [
            n
            for form in ("midlayer", "speculators")
            for n in (f"{r('forms', form, 'greedy_identical_share') * r('prompts'):.0f}", str(r("prompts")))
        ],
    ),
    (
        PAGE,
        "Of greedy answers in vLLM with",
        "drafting_differences",
        lambda r: [
            str(r("forms", weights, "drafter", what)) for weights in ("int8", "float") for what in ("identical", "prompts")
        ],
    ),
    (
        PAGE,
        "Served tau at",
        "drafter_served",
        lambda r: [
            percent(r("gap_t0")),
            hundredth(r("forms", "midlayer", "t0", "tau")),
            percent(r("gap_t1")),
            hundredth(r("forms", "midlayer", "t1", "tau")),
            percent(r("forms", "midlayer", "t1", "gap_standard_error"), 1, False),
        ],
    ),
    (PAGE, "Tokens/s in vLLM with a drafter", "drafter_speed", lambda r: speed(r, "house", 1)),
    (PAGE, "The same at 8 requests at a time", "drafter_speed", lambda r: speed(r, "house", 8)),
    (PAGE, "A forward pass that costs", "drafter_speed", lambda r: speed(r, "wide", 1)),
    (PAGE, "The same at 8 requests at a time for 252M", "drafter_speed", lambda r: speed(r, "wide", 8)),
    (PAGE, "Tau at T = 0; 1 after 250", "drafter_losses", lambda r: losses(r, ("eagle3", "lk_lambda"))),
    (PAGE, "Tau at T = 0; 1 without", "drafter_losses", lambda r: losses(r, ("ngram", "untrained"), ("suffix", "untrained"))),
    (PAGE, "LK-lambda over KL", "drafter_losses", gains),
    (
        PAGE,
        "Tokens/s of EAGLE-3 training",
        "drafter_peers",
        lambda r: [*(tenth(x) for peer in DRAFTER_PEERS for x in r(peer, "speed_ratio"))],
    ),
    (
        PAGE,
        "Peak memory of the same",
        "drafter_peers",
        lambda r: [*(hundredth(x) for peer in DRAFTER_PEERS for x in r(peer, "memory_ratio"))],
    ),
    (PAGE, "Tau of the heads", "drafter_peers", lambda r: head_gains(r, "speculators", "ours")),
    (PAGE, "The same against specforge", "drafter_peers", lambda r: head_gains(r, "specforge", "ours")),
    *(
        (PAGE, start, "drafter_peers", lambda r, side=side: [x for peer in DRAFTER_PEERS for x in head_gains(r, peer, side)])
        for start, side in (
            ("Tau with LK-lambda", "lk_lambda"),
            ("Tau from the peer's", "ours_peer_start"),
            ("Tau with EAGLE-3 and AdamW", "ours_adamw"),
        )
    ),
    (PAGE, "Tau of a drafter trained for", "drafter_workload", lambda r: [*workload_gains(r), percent(r("gain"))]),
    (PAGE, "What that drafter loses", "drafter_workload", lambda r: [percent(r("loss_elsewhere"), 0, False)]),
    (
        PAGE,
        "Traffic shifts",
        "drafter_drift",
        lambda r: [
            *(hundredth(x) for t in ("t0", "t1") for x in r("tau_shares", t)),
            "150",
            *(
                hundredth(r("taus", "from_scratch_in_few_steps", t, "tau") / r("taus", "from_scratch", t, "tau"))
                for t in ("t0", "t1")
            ),
        ],
    ),
    (
        PAGE,
        "How much less does a scheme for each layer",
        "auto_scheme",
        lambda r: [percent(value, 0, False) for size in ("w4a16_g64", "w4a16_g32") for value in r("at", size, "gain")],
    ),
    (
        PAGE,
        "What does training before rounding",
        "auto_scheme",
        lambda r: [decimals(r("distilled"), 5), decimals(r("rounded"), 5)],
    ),
    *(
        (
            PAGE,
            f"House model, {title}",
            "quantize_peers",
            lambda r, side=side, rounded=rounded: [
                f"{r(side, 'perplexity_ratio'):.4f}",
                *(rounded(x) for x in r(side, "cpu_ratio")),
                *(hundredth(x) for x in r(side, "memory_ratio")),
            ],
        )
        for side, title, rounded in PEER_SCHEMES
    ),
    *(
        (
            PAGE,
            f"249M model, {title}",
            "quantize_peers",
            lambda r, side=side, rounded=rounded: [
                f"{r('wide', side, 'perplexity_ratio'):.4f}",
                rounded(r("wide", side, "cpu_ratio")[0]),
                hundredth(r("wide", side, "memory_ratio")[0]),
            ],
        )
        for side, title, rounded in PEER_SCHEMES
    ),
    (PAGE, "How much of the teacher's advantage", "student", lambda r: [hundredth(x) for x in r("advantage_kept")]),
    (PAGE, "What part of that gap", "student", lambda r: [hundredth(x) for x in r("importance_gain")]),
    (PAGE, "How much closer to the teacher", "student", lambda r: [hundredth(x) for x in r("on_policy_gain")]),
    (
        PAGE,
        "How fast does a student of half",
        "teacher_cache",
        lambda r: [
            hundredth(x)
            for student in ("half", "fifth")
            for x in (r("speed_ratio", student)[0], *sorted(r("speed_ratio", student)[1:]))
        ],
    ),
    (
        PAGE,
        "How many bytes on disk does the cache",
        "teacher_cache",
        lambda r: [str(r("bytes_per_token")), decimals(r("loss_difference", "half")[0], 4)],
    ),
    (
        PAGE,
        "What is a drafter worth",
        "quantized_served",
        lambda r: [
            *(hundredth(r(side, t)) for side in ("tau_own", "tau_other") for t in ("t0", "t1")),
            percent(r("gain", "t1")[0]),
            *interval(*r("gain", "t1")[1:]),
        ],
    ),
    (
        PAGE,
        "How fast are int8 weights of the house",
        "quantized_served",
        lambda r: [hundredth(r("speed_ratio", "house", n, "ratio")) for n in ("1", "8")],
    ),
    (
        PAGE,
        "The same for the 252M model",
        "quantized_served",
        lambda r: [hundredth(r("speed_ratio", "wide", n, "ratio")) for n in ("1", "8")],
    ),
    (
        PAGE,
        "How does a training step's memory",
        "drafter_length",
        lambda r: [hundredth(r("exponent")), *(f"{row['step_mb']:.0f}" for row in r("rows"))],
    ),
    (
        PAGE,
        "How long do the quick demo",
        "machines",
        lambda r: [f"{r('avx2', 'quick_s'):.0f}", f"{r('avx2', 'demo_s'):.0f}", f"{r('native', 'quick_s'):.0f}"],
    ),
    (
        PAGE,
        "A first day with own logs",
        "first_day",
        lambda r: [
            *(f"{r(product, key):.1f}" for key in ("minutes_to_first_look", "minutes_to_release") for product in PRODUCTS),
            str(sum(len(r(product, "keys_lost")) for product in PRODUCTS)),
            str(len(r("slow_errors"))),
        ],
    ),
    *(
        (
            PAGE,
            f"{kind.upper()}, 10M parameters, {length} prompts",
            "preference_peers",
            partial(preference_figures, kind, workload),
        )
        for kind in ("dpo", "kto")
        for workload, length in (("airline", "long"), ("oasst", "short"))
    ),
    (PAGE, "15 preference losses", "preference_losses", lambda r: largest_gaps(r.figures)),
    (PAGE, "Sorting six letters, pairs of better and worse", "preference_gain", gain_figures),
    (PAGE, "Reward model, 10M parameters", "reward_model", partial(reward_figures, "oasst")),
    (PAGE, "The same on outcomes of runs", "reward_model", partial(reward_figures, "airline")),
    (
        PAGE,
        "Seconds that 1,000 pairs of it take",
        "reward_model",
        lambda r: [
            *(tenth(r("seconds_per_1000_pairs", source, "ours")) for source in ("oasst", "airline")),
            *(hundredth(r("speed_ratio", source)) for source in ("oasst", "airline")),
        ],
    ),
    (PAGE, "[Reinforcement fine-tuning](reinforcement.md) of a model", "rft_learns", partial(learnt_figures, "count")),
    (PAGE, "The same with yes, no or maybe", "rft_learns", partial(learnt_figures, "maybe")),
    (PAGE, "[Asynchronous](reinforcement.md#asynchronous) reinforcement", "async_rl", async_figures),
    (PAGE, "Rollouts with a [drafter]", "rollout_speed", rollout_figures),
    (
        PAGE,
        "Hostile programs",
        "sandbox",
        lambda r: [*(str(r(each)) for each in ("attempts", "escaped", "hung")), tenth(r("ms_per_program"))],
    ),
    (PAGE, "GRPO on a counting task", "rft_peers", policy_figures),
    (PAGE, "GRPO, Dr.GRPO, CISPO and GSPO", "rft_peers", lambda r: largest_gaps(r("losses"))),
    (
        PAGE,
        "An agent on OpenAI's SDK",
        "verifiers_env",
        lambda r: [str(r(kind, key)) for key in ("rollouts", "trained_steps") for kind in ("openai_agent", "taskset")],
    ),
    (
        README,
        "How long does the full demo",
        "demo",
        lambda r: [f"{r('seconds_in_all'):.0f}", tenth(r("peak_memory_mb") / 1000)],
    ),
    (README, "How fast is ingest", "ingest", lambda r: [about(r("rows_per_second"), 2), hundredth(r("ratio"))]),
    (
        README,
        "Near duplicates",
        "near_duplicates",
        lambda r: [
            about(r("docs_per_s")),
            str(r("threads")),
            str(r("f1")),
            tenth(r("docs_per_s") / r("peers", "rensa", "docs_per_s")),
            hundredth(r("peers", "rensa", "f1")),
        ],
    ),
    (
        README,
        "Does a killed ingest",
        "ingest_faults",
        lambda r: [str(r("kills")), str(r("lost_rows")), str(r("reader_errors"))],
    ),
    (
        README,
        "Fine-tuning compared",
        "trainer_vs_trl",
        lambda r: [
            figure
            for size in ("small", "large")
            for figure in (
                *repeated(r, f"ratio_{size}", tenth),
                *repeated(r, f"cpu_ratio_{size}", tenth),
                *repeated(r, f"memory_ratio_{size}", hundredth),
            )
        ],
    ),
    (README, "Does a killed training", "resume", lambda r: [str(r("kills"))] if r("identical") else []),
    (
        README,
        "EAGLE-3 training",
        "drafter_peers",
        lambda r: [
            *(tenth(x) for peer in DRAFTER_PEERS for x in r(peer, "speed_ratio")),
            *(hundredth(x) for peer in DRAFTER_PEERS for x in r(peer, "memory_ratio")),
            "0",
            *head_gains(r, "speculators", "ours")[:3],
            *head_gains(r, "specforge", "ours")[:3],
        ],
    ),
    (README, "Does vLLM 0.32", "drafter_served", lambda r: [str(r("prompts"))] * 2 if r("greedy_identical") else []),
    (README, "What does a drafter gain", "drafter_speed", lambda r: [speed(r, "wide", 1)[0], "0", speed(r, "wide", 8)[0], "8"]),
    (README, "What is a drafter for one's", "drafter_workload", workload_gains),
]
"""Page, beginning of a row, benchmark, and the numbers that the row's figure cells hold, in order."""


def rows(page: str) -> list[list[str]]:
    """The tables' rows in the page's order, without headers and rulers."""
    lines = (PROJECT / page).read_text().splitlines()
    table = [
        line
        for index, line in enumerate(lines)
        if line.startswith("|") and not line.startswith("|--") and not lines[min(index + 1, len(lines) - 1)].startswith("|--")
    ]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]


def claimed(page: str) -> list[tuple[str, str]]:
    """(beginning of the row, its figure cells) of every row that claims a figure."""
    if page == README:
        return [(row[0], row[1]) for row in rows(page) if len(row) == 3 and row[0].endswith("?")]
    return [(row[0], row[2] if len(row) == 5 else " ".join(row[1:])) for row in rows(page)]


@pytest.mark.parametrize("page", [README, PAGE])
def test_every_figure_is_the_recorded_one(page):
    claims = [claim for claim in CLAIMS if claim[0] == page]
    found = claimed(page)
    assert len(found) == len(claims), "a row without a claim here, or a claim without its row"
    unused = list(found)
    for _, start, benchmark, expected in claims:
        row = next(row for row in unused if row[0].startswith(start))
        unused.remove(row)
        numbers = expected(Result(benchmark))
        assert numbers and NUMBER.findall(row[1]) == numbers, f"{benchmark}: {row}"


def test_commands_machines_and_dates_are_the_recorded_ones():
    command, place = "", ""
    for row in rows(PAGE):
        if len(row) != 5:
            continue
        command, place = (row[3], row[4]) if row[3] != "same" else (command, place)
        name = re.search(r"benchmarks\.(\w+)", command).group(1)
        result = Result(name)
        assert (command, place) in {(f"`{run}`", f"{result.machine}, {date}") for run, date in result.runs}, row


def test_every_recorded_run_is_on_the_page():
    text = (PROJECT / PAGE).read_text()
    missing = [path.stem for path in (PROJECT / "benchmarks/results").glob("*.json") if f"benchmarks.{path.stem}" not in text]
    assert not missing
