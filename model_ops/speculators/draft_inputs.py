"""What would make a drafter's training senseless, told before any weight is loaded.

    check_target(target, "eagle3")                     # layers, a head, ends of text
    check_answers(answers, target, rows, left_out, held_out)     # whose they are, and whether they teach anything

Each problem is a ModelError of one sentence with its remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from model_ops.errors import ModelError
from model_ops.models.end_of_text import end_of_text_ids
from model_ops.models.model_directory import read_config
from model_ops.models.mtp_tensors import BODY_TYPES, takes_layer_for_quantized
from model_ops.models.target_digest import target_digest, vocabulary_digest
from model_ops.speculators.dflash import captured_boundaries
from model_ops.speculators.eagle3 import default_layer_ids
from model_ops.speculators.hidden_states import AnswerRow
from model_ops.tensor_files import TensorFileError, read_directory


def check_target(target: Path, architecture: str) -> None:
    """A target that a drafter can be built for: it has the layers, a head, and its answers can end.

    Raises ModelError for too few layers for the boundaries that the architecture reads, for a target without the output
    matrix that drafts are scored against (tied to the embedding, or its own), for an end of text that is no token, and for
    a target beside which a server could not run an MTP layer.
    """
    config = read_config(target)
    if architecture in ("eagle3", "eagle3.1", "p_eagle"):
        default_layer_ids(config.get("num_hidden_layers") or 0)
    if architecture == "mtp":
        _check_beside_mtp(target, config)
    if architecture == "dflash":
        captured_boundaries(config.get("num_hidden_layers") or 0, None)
    try:
        tensors = read_directory(target)
    except TensorFileError as error:
        raise ModelError(str(error)) from error
    tied = bool(config.get("tie_word_embeddings"))
    head, vocab = "model.embed_tokens.weight" if tied else "lm_head.weight", config.get("vocab_size")
    packed = [name for name in tensors if name.startswith(f"{head}_")]  # some quantized forms keep it in parts
    if head not in tensors and not packed:
        raise ModelError(f"{target}: tie_word_embeddings is {str(tied).lower()} and there is no {head}: a drafter is scored "
                         "against the target's head; save the model with it")
    shape = tuple(tensors[head].shape) if head in tensors else (vocab, 0)
    if len(shape) != 2 or shape[0] != vocab:
        raise ModelError(f"{target}: {head} is {list(shape)}, config.json says a vocabulary of {vocab}: save the model again")
    strange = sorted(token for token in end_of_text_ids(target) if not 0 <= token < vocab)
    if strange:
        raise ModelError(f"{target}: the end of text {strange[0]} is outside the vocabulary of {vocab}, so no draft could ever "
                         "end; set eos_token_id in generation_config.json")


def _check_beside_mtp(target: Path, config: Mapping[str, Any]) -> None:
    """What vLLM asks of a target beside which it runs a multi-token-prediction layer."""
    if config["model_type"] not in BODY_TYPES:
        raise ModelError(f"{target} is a {config['model_type']}; architecture mtp is known for {', '.join(BODY_TYPES)}, the "
                         "body beside MiMo's layer: take eagle3")
    if takes_layer_for_quantized(config):
        raise ModelError(f"{target} is quantized and its config.json does not say that the multi-token-prediction layer beside "
                         "it is not: vLLM would take its floats for int8; quantize the model again with mtp_layer: true")


def check_answers(answers: Path, target: Path, rows: Sequence[AnswerRow], left_out: Mapping[str, int],
                  held_out: Sequence[AnswerRow] = ()) -> None:
    """Answers that this target gave, with something to learn from, and held-out ones that it gave, too. Raises ModelError, see
    the file's first lines."""
    path = answers / "train.parquet"
    if not rows:
        if left_out.get("rows_left_out"):
            raise ModelError(f"none of the {left_out['rows_left_out']} answers in {path} holds a token to predict within "
                             "max_length: raise max_length, or generate answers for shorter prompts")
        raise ModelError(f"{path} holds no answer to train the drafter on; generate more")
    _check_origin(path, rows, target)
    if held_out:
        _check_origin(answers / "validation.parquet", held_out, target)


def _check_origin(path: Path, rows: Sequence[AnswerRow], target: Path) -> None:
    """Raises ModelError where a file's answers are of other weights, of another tokenizer, or no tokens of the target's."""
    named = {name.decode(): value.decode() for name, value in (pq.read_schema(path).metadata or {}).items()}
    digests = {"target_digest": (target_digest, "weights"), "vocabulary_digest": (vocabulary_digest, "tokenizer")}
    for name, (digest, what) in digests.items():
        given = named.get(name)
        own = digest(target) if given else ""
        if given and own and given != own:
            raise ModelError(f"{path} was answered with other {what} ({given[:12]}) than the target's ({own[:12]}): generate "
                             "the answers again with the target that is to be served")
    vocab = read_config(target)["vocab_size"]
    for row in rows:
        if not 0 <= min(row.ids) <= max(row.ids) < vocab:
            raise ModelError(f"{path}: row {row.row_id} holds token ids outside the target's vocabulary of {vocab}: they are "
                             "of another tokenizer")
