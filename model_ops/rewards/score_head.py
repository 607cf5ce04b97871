"""The score head of a reward model: a linear layer of one output, without bias, on the hidden state of an answer's last token.

    model = with_score_head(causal_model, tokenizer, seed=0)     # transformers' sequence classifier with one label
    scores = answer_scores(model, batch, segment_ends(batch))    # float32, [answers]

The classifier shares the decoder of the causal model: packed rows, branches, adapters and meshes stay as they were.
transformers reads a score at the last token of a row that is not `pad_token_id`, so padding must be a token that ends no
answer: where a tokenizer pads with its end of turn, the score would be read one token early (transformers #35352).
"""

import copy
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from model_ops.jobs import ModelError
from model_ops.losses import Head, last_hidden, local_head
from model_ops.rendering import end_of_turn_ids
from model_ops.tensors import Batch


def with_score_head(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """The decoder of a causal language model under a new float32 head; the language-model head is dropped.

    The head's weights are normal with standard deviation 1 / sqrt(width + 1) (Stiennon et al., arXiv 2009.01325); the same seed
    gives the same head on every device. Raises ModelError for a family without a sequence classifier in transformers.
    """
    config = model.config
    config.id2label, config.label2id, config.problem_type = {0: "reward"}, {"reward": 0}, "regression"
    config.pad_token_id = padding_token(tokenizer, config.vocab_size)
    kind, decoder = config.model_type, model.base_model
    try:
        with torch.device("meta"):
            classifier = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{kind}: transformers has no sequence classifier for it, so it cannot be a reward model") from error
    held, score = getattr(classifier, classifier.base_model_prefix, None), getattr(classifier, "score", None)
    if held is None or type(held) is not type(decoder) or not isinstance(score, nn.Linear):
        raise ModelError(
            f"{kind}: its sequence classifier is not its decoder under a linear score, so it cannot be a reward model"
        )
    setattr(classifier, classifier.base_model_prefix, decoder)
    width = score.in_features
    drawn = torch.randn(1, width, generator=torch.Generator().manual_seed(seed)) / math.sqrt(width + 1)
    score.weight = nn.Parameter(drawn.to(decoder.get_input_embeddings().weight.device))
    classifier.generation_config = None  # it generates nothing; those who save a model look for one
    return classifier.train(model.training)


def segment_ends(batch: Batch) -> Int[Tensor, " segments"]:
    """The place of the last token of each segment: a document, or a branch of one."""
    return (torch.tensor(batch.document_lengths).cumsum(0) - 1).to(batch.input_ids.device, non_blocking=True)


def answer_scores(model: PreTrainedModel, batch: Batch, places: Int[Tensor, " answers"]) -> Float[Tensor, " answers"]:
    """Float32 scores of the answers whose last tokens are at `places` of the packed row."""
    hidden = last_hidden(model, batch)[places]
    head, _ = local_head(Head(model.score.weight))
    if head is None:
        raise ModelError("the score head is no linear layer, so it gives no scores")
    with torch.autocast(hidden.device.type, enabled=False):
        return hidden.float() @ head.weight.float()[0]


def scorers_tokenizer(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> PreTrainedTokenizerBase:
    """A copy for the reward model's directory: it pads with `padding_token`, and a conversation that ends with an answer is
    rendered up to the end of its turn, without the white space that many templates write after it. So whoever sends messages
    gets the score of the token that was trained."""
    copied = copy.deepcopy(tokenizer)
    copied.pad_token = tokenizer.convert_ids_to_tokens(padding_token(tokenizer, vocab_size))
    template = tokenizer.chat_template
    copied.chat_template = (
        {name: _up_to_end_of_turn(text) for name, text in template.items()}
        if isinstance(template, dict)
        else template and _up_to_end_of_turn(template)
    )
    return copied


def _up_to_end_of_turn(template: str) -> str:
    whole = f"{{% set conversation %}}{template.removesuffix(chr(10))}{{% endset %}}"
    return whole + "{{ conversation if add_generation_prompt else conversation.rstrip() }}"


def padding_token(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> int:
    """Id of a token that ends no answer: the tokenizer's own padding where that is one, else another special token, else the
    last of the vocabulary."""
    ends = {tokenizer.eos_token_id, *end_of_turn_ids(tokenizer)}
    wanted = [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id, *sorted(tokenizer.added_tokens_decoder)]
    return next(token for token in (*wanted, vocab_size - 1, vocab_size - 2) if token is not None and token not in ends)
