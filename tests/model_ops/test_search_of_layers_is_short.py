"""A student's search for layers reads no more than its training does."""

from types import SimpleNamespace

import numpy as np
import pytest

from model_ops.documents.documents import Document
from model_ops.jobs.job import Progress
from model_ops.operations import distill
from model_ops.operations.distill_settings import StudentSettings


@pytest.mark.parametrize(
    ("training", "tokens"),
    [
        ({"steps": 10, "tokens_per_step": 2_048}, 3_034),
        ({"steps": 1, "tokens_per_step": 512}, 1_024),
        ({"steps": 60, "tokens_per_step": 4_096}, 8_192),
        ({"epochs": 1}, 8_192),
    ],
)
def test_tokens_that_the_importance_of_layers_is_measured_on(monkeypatch, training, tokens):
    read = []
    monkeypatch.setattr(distill, "least_important", lambda teacher, documents, *_, **__: read.extend(documents))
    documents = [Document(f"{row}", np.ones(100, dtype=np.int32), np.ones(100, dtype=bool)) for row in range(200)]
    teacher = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=10))
    settings = StudentSettings(layers=7, choose_layers="importance", **training).resolved()
    distill.searched_layers(teacher, 7, settings, SimpleNamespace(validation=documents, documents=documents), Progress())
    assert abs(sum(len(each) for each in read) - tokens) <= 100
