"""Operation `tiny_base`: trains a byte-level BPE tokenizer and a small Qwen3 model on Python's standard library.

The text is `standard_library.modules("base")`, source files that the demo's logs never use. One file in twenty is held out, by
a hash of its name. The chat template is chatml.jinja in this folder. Settings and Python version determine tokenizer and
weights."""

import hashlib
import math
import sysconfig
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from model_ops.documents import Document, PackedPlan, held_out_loss, mean_loss
from model_ops.files import library_sources
from model_ops.jobs import Job, Progress, filled
from model_ops.machine import concrete
from model_ops.models import save_model, training_device
from model_ops.objectives import next_token_loss
from model_ops.operations.tiny_base_settings import TinyBaseSettings
from model_ops.training import plan_validation, train

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


def train_tokenizer(texts: list[str], settings: TinyBaseSettings) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE tokenizer, which can encode any text. Ids 0 to 2 are the special tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=settings.vocab_size,
            special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        model_max_length=settings.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = (Path(__file__).parent / "chatml.jinja").read_text()
    return tokenizer


HELD_OUT_ONE_IN = 20
VALIDATION_TOKENS = 24_000
"""Approximate number of validation tokens, at most, spread evenly over the held-out files."""


def run(job: Job, progress: Progress) -> dict[str, float | int]:
    """Trains and saves tokenizer and model. Metrics include validation_loss and unigram_loss in nats per token."""
    settings = concrete(job.settings_as(TinyBaseSettings), training_device())
    training, held_out = read_texts(library_sources("base"))
    progress.report("tokenizer", 0, 1, "tokenizers")
    tokenizer = train_tokenizer(list(training.values()), settings)
    progress.report("tokenizer", 1, 1, "tokenizers")
    longest = filled(settings.max_length)
    documents = text_documents(training, tokenizer, longest)
    plan = PackedPlan(documents, settings)
    checks = plan_validation(len(plan), plan.settings)
    validation = spread(text_documents(held_out, tokenizer, longest), min(VALIDATION_TOKENS, checks.tokens))
    model = new_model(settings, tokenizer).to(training_device())
    result = train(
        model,
        plan,
        next_token_loss,
        settings,
        job.output / ".work",
        progress,
        "tiny_base",
        validate=lambda: {"validation_loss": mean_loss(held_out_loss(model, validation, precision=settings.precision))},
        validate_every=checks.every,
    )
    save_model(model, tokenizer, job.output)
    seen = tokenizer.batch_decode([document.input_ids[1:] for document in validation], skip_special_tokens=True)
    nats = result.validation["validation_loss"] * sum(document.target_tokens for document in validation)
    return {
        **result.metrics({"training_tokens": sum(len(document) for document in documents)}),
        "unigram_loss": unigram_loss(documents, validation, settings.vocab_size),
        "validation_bits_per_byte": nats / math.log(2) / sum(len(text.encode()) for text in seen),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def read_texts(paths: list[Path]) -> tuple[dict[str, str], dict[str, str]]:
    """(training texts, held-out texts), each file name -> source text."""
    library = Path(sysconfig.get_path("stdlib"))
    training: dict[str, str] = {}
    held_out: dict[str, str] = {}
    for path in paths:
        name = path.relative_to(library).as_posix() if path.is_relative_to(library) else path.name
        chosen = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % HELD_OUT_ONE_IN == 0
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.strip():
            (held_out if chosen else training)[name] = text
    return training, held_out


def text_documents(texts: dict[str, str], tokenizer: PreTrainedTokenizerFast, max_length: int) -> list[Document]:
    """Documents of each text with an end-of-text token, split at `max_length` tokens; every token is a target."""
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(list(texts.values()), add_special_tokens=False)
    documents = []
    for name, encoding in zip(texts, encodings, strict=True):
        ids = np.array([*encoding.ids, end], dtype=np.int32)
        for start in range(0, len(ids), max_length):
            piece = ids[start : start + max_length]
            documents.append(Document(f"{name}:{start}", piece, np.ones(len(piece), dtype=bool)))
    return documents


def spread(documents: list[Document], tokens: int) -> list[Document]:
    """Every n-th document, so that about `tokens` tokens remain."""
    return documents[:: max(1, round(sum(len(document) for document in documents) / tokens))]


def new_model(settings: TinyBaseSettings, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A model with seeded initial weights in float32 and a tied head. The standard deviation is 0.7 / sqrt(hidden): the usual
    0.02 suits models ten times as wide, and at hidden 128, 100 steps of 2,048 tokens reach a loss of 6.2 with it and 5.5 with
    0.7 / sqrt(hidden). Output projections of attention and MLP are divided by sqrt(2 layers), as in GPT-2."""
    torch.manual_seed(settings.seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=settings.vocab_size,
            hidden_size=settings.hidden_size,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.kv_heads,
            head_dim=settings.head_dim,
            intermediate_size=settings.mlp_size,
            max_position_embeddings=settings.max_position_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            initializer_range=0.7 * settings.hidden_size**-0.5,
            attn_implementation="packed",
        )
    )
    with torch.no_grad():
        for layer in model.model.layers:
            for writer in (layer.self_attn.o_proj, layer.mlp.down_proj):
                writer.weight.div_(math.sqrt(2 * settings.layers))
    return model


def unigram_loss(training: list[Document], held_out: list[Document], vocab_size: int) -> float:
    """Nats per held-out token of a unigram model (add-one smoothing)."""
    counts = np.ones(vocab_size)
    for document in training:
        counts += np.bincount(document.input_ids, minlength=vocab_size)
    costs = -np.log(counts / counts.sum())
    tokens = np.concatenate([document.input_ids[1:] for document in held_out])
    return float(costs[tokens].mean())
