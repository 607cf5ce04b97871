"""Operation `embed`: text embeddings, the normalised mean of a model's last hidden states over a text's tokens.

Reads texts.parquet (column `text`) in the input `texts`; writes embeddings.npy, float32 [rows, hidden], in the rows' order. A
text without words, or of more than max_length tokens, becomes a vector of zeros, which is similar to nothing: a truncated text
must not drop rows as duplicates, because two texts with the same beginning may differ in meaning."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from transformers import AutoModel, AutoTokenizer

from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import training_device
from model_ops.operations.embed_settings import EmbedSettings


def run(job: Job, progress: Progress) -> dict[str, int]:
    """Writes embeddings.npy. Raises ModelError if the model cannot be read."""
    settings = job.settings_as(EmbedSettings)
    tokenizer, model = _load(job.inputs["model"])
    texts = [text or "" for text in pq.read_table(job.inputs["texts"] / "texts.parquet", columns=["text"])["text"].to_pylist()]
    shape = (len(texts), model.config.hidden_size)
    partial = job.output / "embeddings.npy.part"
    vectors = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape) if texts else np.zeros(shape)
    order = sorted(range(len(texts)), key=lambda row: (len(texts[row]), row))
    embedded = 0
    for first in range(0, len(order), settings.batch):
        progress.report("embed", first, len(order), "texts")
        progress.stop_if_requested()
        rows = order[first : first + settings.batch]
        vectors[rows], read = _embed([texts[row] for row in rows], tokenizer, model, settings.max_length)
        embedded += read
    if isinstance(vectors, np.memmap):
        vectors.flush()
    else:
        with partial.open("wb") as file:
            np.save(file, vectors.astype(np.float32))
    partial.replace(job.output / "embeddings.npy")
    progress.report("embed", len(order), len(order), "texts")
    return {"texts": len(texts), "embedded": embedded, "hidden_size": shape[1]}


def _load(directory: Path):
    if not (Path(directory) / "config.json").is_file():
        raise ModelError(f"{directory} holds no config.json: give an embedding model in the Hugging Face layout")
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        model = AutoModel.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=torch.float32
        )
    except (OSError, ValueError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{directory} cannot be read as an embedding model: {first_line}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if tokenizer.pad_token is None:
        raise ModelError(f"{directory}: the tokenizer has neither a padding nor an eos token; add one")
    tokenizer.padding_side = "right"
    return tokenizer, model.to(training_device()).eval().requires_grad_(False)


@torch.inference_mode()
def _embed(texts: list[str], tokenizer, model, max_length: int) -> tuple[np.ndarray, int]:
    """A vector for each text, and the number of vectors that are not zero."""
    vectors = np.zeros((len(texts), model.config.hidden_size), np.float32)
    ids = tokenizer(texts, truncation=True, max_length=max_length + 1)["input_ids"]
    chosen = [at for at, text in enumerate(texts) if text.strip() and 0 < len(ids[at]) <= max_length]
    if not chosen:
        return vectors, 0
    tokens = tokenizer.pad({"input_ids": [ids[at] for at in chosen]}, return_tensors="pt").to(model.device)
    hidden = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state.float()
    weights = tokens["attention_mask"].unsqueeze(-1).float()
    mean = (hidden * weights).sum(1) / weights.sum(1)
    vectors[chosen] = torch.nn.functional.normalize(mean, dim=-1).cpu().numpy()
    return vectors, len(chosen)
