"""A model directory small enough to train in a test, and a dataset of conversations for it."""

import pytest
from tiny_chats import conversation, write_rows

TEXTS = {f"file{i}": f"def add_{i}(a, b):\n    return a + b * {i}\n\nclass Thing{i}:\n    pass\n" * 6 for i in range(12)}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Untrained, 4 layers, hidden 32; its tokenizer is the tiny base's."""
    from model_ops.models.model_directory import save_model
    from model_ops.operations.tiny_base import new_model, train_tokenizer
    from model_ops.operations.tiny_base_settings import TinyBaseSettings

    settings = TinyBaseSettings(
        vocab_size=512, hidden_size=32, layers=4, heads=2, kv_heads=1, head_dim=16, mlp_size=48, max_position_embeddings=256
    )
    tokenizer = train_tokenizer(list(TEXTS.values()), settings)
    # The text is too small for 512 merges: the head keeps the size asked for, as served models' do.
    folder = tmp_path_factory.mktemp("tiny-model")
    save_model(new_model(settings, tokenizer), tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def chats(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chats")
    write_rows(folder, "train", [conversation(i) for i in range(40)])
    write_rows(folder, "validation", [conversation(i) for i in range(40, 46)])
    return folder


@pytest.fixture(scope="session")
def tiny_tokenizer():
    """A byte-level BPE of at most 300 tokens with the house's chat template."""
    from model_ops.operations.tiny_base import train_tokenizer
    from model_ops.operations.tiny_base_settings import TinyBaseSettings

    return train_tokenizer(list(TEXTS.values()), TinyBaseSettings(vocab_size=512).model_copy(update={"vocab_size": 300}))
