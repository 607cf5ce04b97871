"""The byte-level BPE tokenizer of `tiny_base`, with chatml.jinja of this folder as its chat template. Imports no torch.

tokenizer = train_tokenizer(["what is three and four"], TinyBaseSettings(vocab_size=512))
"""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from model_ops.operations.tiny_base_settings import TinyBaseSettings

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
