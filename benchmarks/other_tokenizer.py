"""Distillation across tokenizers, compared with distillation within one: how much of the gain over plain fine-tuning remains.

    python -m benchmarks.other_tokenizer            # 2 idle cores, about half an hour
    python -m benchmarks.other_tokenizer --quick    # a few steps: the figures mean nothing

Teacher ../shared/models/house (10M, 8,192 tokens). Rows are GSM8K's training questions with their answers, which the teacher
was trained on; held out are test questions. Both students have the half of its layers that importance keeps. The student
`other` has a byte-level BPE of its own (5,120 tokens, trained on ../shared/data); the embedding of each of its tokens begins as
the mean of the teacher's over the teacher's tokens of the same text. Its rows are the same texts, and its steps hold as many
bytes. Both learn the rows by plain cross-entropy first (--warm-up steps), since a model that a user brings knows its tokenizer.

Sides of each student, from there on: sft, plain cross-entropy; distilled, forward KL, for `other` from the teacher's tokens as
the student spells them.

gain: bits per byte of held-out answers with sft minus those with distillation. share: gain of other / gain of same, as [mean,
smallest, largest] over the seeds. warm: bits before the sides.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.drafter_peers import mean_and_range
from benchmarks.house import House
from benchmarks.record import record
from benchmarks.sft_material import gsm8k
from model_ops.documents.conversations import tokenize
from model_ops.documents.documents import Document, Documents
from model_ops.documents.likelihood import held_out_loss
from model_ops.documents.packing import PackedPlan
from model_ops.jobs.progress import Progress
from model_ops.models.model_directory import load_model, load_tokenizer
from model_ops.objectives.distillation import Divergence, distillation_loss
from model_ops.objectives.paired_batches import PairedPlan
from model_ops.objectives.paired_chats import PairedDocuments, aligned
from model_ops.objectives.sft import next_token_loss
from model_ops.objectives.spelling import Spelling
from model_ops.objectives.spelt_distillation import spelt_distillation_loss
from model_ops.operations.distill_settings import StudentSettings
from model_ops.operations.tiny_base_settings import TinyBaseSettings
from model_ops.operations.tiny_tokenizer import train_tokenizer
from model_ops.pruning.layer_importance import least_important
from model_ops.pruning.shallower import make_student
from model_ops.rendering.token_bytes import TokenBytes, matched_ids
from model_ops.training.trainer import train as train_model
from model_ops.training.validation import first_documents

PROJECT = Path(__file__).resolve().parent.parent
MAX_LENGTH, TOKENS_PER_STEP, MEASURED_TOKENS, HELD_OUT = 1_024, 4_096, 8_192, 300
WARM_UP_RATE, LEARNING_RATE = 2e-3, 5e-4
OTHER_VOCABULARY = 5_120
SEEDS, WARM_UP_SEED = (0, 1, 2), 17
WAYS = {"same": ("sft", "distilled"), "other": ("sft", "distilled")}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.other_tokenizer", description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds models/house and data/")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps of every training")
    parser.add_argument("--warm-up", type=int, default=120, help="steps of plain cross-entropy before")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--quick", action="store_true", help="a few steps of one seed: the figures mean nothing")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    steps, warm_up, seeds = (3, 3, 1) if given.quick else (given.steps, given.warm_up, given.seeds)
    with tempfile.TemporaryDirectory(prefix="tokenizers-") as scratch:
        figures = Bench(given.shared, Path(scratch), (warm_up, steps), SEEDS[:seeds]).figures()
        record("other_tokenizer", figures, keep=not given.quick)


class Answered(NamedTuple):
    """One answer after its prompt."""

    row_id: str
    ids: list[int]
    prompt_tokens: int

    @classmethod
    def of(cls, document: Document) -> Answered:
        return cls(document.row_id, document.input_ids.tolist(), int(document.targets.argmax()))


class Bench:
    """Everything of one run of the benchmark."""

    def __init__(self, shared: Path, folder: Path, steps: tuple[int, int], seeds: Sequence[int]):
        house = House(shared, folder / "house")
        self.folder, self.seeds = folder, seeds
        self.warm_up, self.steps = steps
        self.tokenizer, self.other = load_tokenizer(house.target), other_tokenizer(shared, load_tokenizer(house.target))
        train, test = (
            tokenize(gsm8k(shared, split, limit, plain=True), self.tokenizer, MAX_LENGTH)[0]
            for split, limit in (("train", None), ("test", HELD_OUT))
        )
        rows, held_out = ([Answered.of(document) for document in documents] for documents in (train, test))
        self.teacher = load_model(house.target, dtype=torch.float32).requires_grad_(False)
        self.rows, self.held_out = Documents.gather(train), {"same": Documents.gather(test)}
        self.paired, kept = self.pair(rows)
        self.held_out["other"] = Documents.gather(self.pair(held_out)[0].documents)
        self.kept_share = kept / len(rows)
        self.bytes = sum(len(self.tokenizer.decode(row.ids[row.prompt_tokens :]).encode()) for row in held_out)
        depth = self.teacher.config.num_hidden_layers
        measured = first_documents(self.rows, MEASURED_TOKENS)
        self.layers = least_important(self.teacher, measured, depth - depth // 2, "bfloat16").kept
        sizes = len(self.other), len(self.teacher.get_input_embeddings().weight)
        spelt = TokenBytes.of(self.other), TokenBytes.of(self.tokenizer)
        pairs = matched_ids(*spelt, [self.other.eos_token_id], [self.tokenizer.eos_token_id])
        self.matched = len(pairs[1]) / len(spelt[1].bytes)
        self.spelling = Spelling.of(self.other, self.tokenizer, self.paired, sizes)
        student = make_student(self.teacher, self.layers)
        self.students = {"same": student, "other": with_vocabulary(student, self.other, self.tokenizer)}
        theirs = sum(int(document.target_tokens) for document in self.paired.documents)
        self.ratio = sum(map(len, self.paired.documents)) / sum(map(len, self.paired.of_teacher))
        self.single = (
            sum(int(((groups[:, 0] == groups[:, 1]) & (groups[:, 3] == groups[:, 4])).sum()) for groups in self.paired.groups)
            / theirs
        )

    def pair(self, rows: Sequence[Answered]) -> tuple[PairedDocuments, int]:
        """The rows in the other tokenizer, with the teacher's, and how many rows these are."""
        spelt, backend = (TokenBytes.of(self.other), TokenBytes.of(self.tokenizer)), self.other.backend_tokenizer
        documents, of_teacher, groups = [], [], []
        for row in rows:
            prompt, answer = (
                backend.encode(self.tokenizer.decode(part), add_special_tokens=False).ids
                for part in (row.ids[: row.prompt_tokens], row.ids[row.prompt_tokens :])
            )
            found = aligned(answer, row.ids[row.prompt_tokens :], *spelt)
            begin = np.array([len(prompt), len(prompt), row.prompt_tokens, row.prompt_tokens])
            places = (found + begin).astype(np.int32)
            ids = np.array([*prompt, *answer], np.int32)
            documents.append(Document(row.row_id, ids, np.arange(len(ids)) >= len(prompt)))
            groups.append(np.insert(places, 2, len(of_teacher), axis=1))
            of_teacher.append(Document(row.row_id, np.array(row.ids, np.int32), np.zeros(len(row.ids), bool)))
        return PairedDocuments(documents, of_teacher, groups, {}), len(rows)

    def figures(self) -> dict[str, Any]:
        """Trains and measures every side with every seed."""
        sides = [(which, how) for which, ways in WAYS.items() for how in ways]
        for which in WAYS:
            self.students[which] = self.trained(which, "sft", WARM_UP_SEED, self.warm_up, WARM_UP_RATE)
        warm = {which: round(self.bits_per_byte(which, student), 4) for which, student in self.students.items()}
        print(warm, flush=True)
        bits: dict[str, list[float]] = {f"{which}/{how}": [] for which, how in sides}
        for seed in self.seeds:
            for which, how in sides:
                found = self.bits_per_byte(which, self.trained(which, how, seed, self.steps))
                bits[f"{which}/{how}"].append(found)
                print(which, how, seed, round(found, 4), flush=True)
        seeds = range(len(self.seeds))
        same = [bits["same/sft"][i] - bits["same/distilled"][i] for i in seeds]
        other = [bits["other/sft"][i] - bits["other/distilled"][i] for i in seeds]
        return {
            "share": mean_and_range([other[i] / same[i] for i in seeds]),
            "gain_same": mean_and_range(same),
            "gain_other": mean_and_range(other),
            "warm": warm,
            "bits_per_byte": {name: [round(each, 4) for each in values] for name, values in bits.items()},
            "matched": round(self.matched, 3),
            "tokens_of_other": round(self.ratio, 3),
            "single_groups": round(self.single, 3),
            "layers": self.layers,
            "warm_up": self.warm_up,
            "steps": self.steps,
            "tokens_per_step": TOKENS_PER_STEP,
            "rows": len(self.rows),
            "held_out_rows": len(self.held_out["same"]),
        }

    def trained(self, which: str, how: str, seed: int, steps: int, learning_rate: float = LEARNING_RATE) -> PreTrainedModel:
        """A copy of a student after a training."""
        settings = StudentSettings(
            steps=steps,
            learning_rate=learning_rate,
            max_length=int(MAX_LENGTH * max(1.0, 2 * self.ratio)),
            seed=seed,
            tokens_per_step=round(TOKENS_PER_STEP * (self.ratio if which == "other" else 1)),
            warmup_share=0.05,
            choose_layers="even",
        ).resolved()
        student = copy.deepcopy(self.students[which]).requires_grad_(True)
        plan, loss = PackedPlan(self.rows if which == "same" else self.paired.documents, settings), next_token_loss
        if how == "distilled" and which == "other":
            plan = PairedPlan(self.paired, settings, self.spelling)
            loss = spelt_distillation_loss(self.teacher, self.spelling, Divergence())
        elif how == "distilled":
            loss = distillation_loss(self.teacher, Divergence())
        work = self.folder / "run"
        train_model(student, plan, loss, settings, work / ".work", Progress(), "student")
        shutil.rmtree(work, ignore_errors=True)
        return student.requires_grad_(False)

    def bits_per_byte(self, which: str, student: PreTrainedModel) -> float:
        """Of the held-out answers."""
        rows = held_out_loss(student, self.held_out[which], precision="bfloat16")
        return sum(row.nll_sum for row in rows) / math.log(2) / self.bytes


def other_tokenizer(shared: Path, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A byte-level BPE with the same special tokens, trained on GSM8K, the airline conversations and the teacher's answers."""
    texts = [" ".join(json.loads(line).values()) for line in (shared / "data" / "gsm8k_train.jsonl").read_text().splitlines()]
    texts += [
        json.dumps(chat["traj"], ensure_ascii=False)
        for chat in json.loads((shared / "data" / "tau_airline.json").read_text())
        if int(chat["task_id"]) % 5 != 4
    ]
    lines = (shared / "data" / "house_onpolicy.jsonl").read_text().splitlines()
    texts += [tokenizer.decode(json.loads(line)["answer"], skip_special_tokens=True) for line in lines[:500]]
    return train_tokenizer(texts, TinyBaseSettings(vocab_size=OTHER_VOCABULARY))


@torch.no_grad()
def with_vocabulary(
    student: PreTrainedModel, ours: PreTrainedTokenizerBase, theirs: PreTrainedTokenizerBase
) -> PreTrainedModel:
    """The student with another vocabulary: a token's embedding is the mean of those of the old tokens of its text."""
    old, spelt = student.get_input_embeddings().weight.detach().clone(), TokenBytes.of(ours)
    of_bytes = {text: token_id for token_id, text in TokenBytes.of(theirs).bytes.items()}
    rows = torch.zeros(len(ours), old.shape[1])
    for token_id, text in spelt.bytes.items():
        try:
            pieces = theirs.backend_tokenizer.encode(text.decode(), add_special_tokens=False).ids
        except UnicodeDecodeError:  # a part of a character: its bytes one by one
            pieces = [of_bytes[bytes([byte])] for byte in text]
        rows[token_id] = old[pieces].mean(0)
    config = copy.deepcopy(student.config)
    config.vocab_size, config.eos_token_id, config.pad_token_id = len(ours), ours.eos_token_id, ours.pad_token_id
    changed = type(student)(config).to(old.dtype)
    weights = {name: value for name, value in student.state_dict().items() if value.shape[:1] != old.shape[:1]}
    changed.load_state_dict(weights, strict=False)
    changed.get_input_embeddings().weight.copy_(rows)
    changed.tie_weights()
    changed.set_attn_implementation("packed")
    return changed


if __name__ == "__main__":
    main()
