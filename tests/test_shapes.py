"""Arrays in calls of model_ops are compared with the shapes in its signatures while tests run (tests/shapes.py)."""

import pytest
import torch
from jaxtyping import TypeCheckError

from model_ops.decoding.sampling import sample, verify_matches
from model_ops.tensors.varlen_kernel import Boundaries


def test_an_argument_of_another_shape_is_caught():
    weights, uniform = torch.ones(2, 5), torch.tensor([0.1, 0.7])
    assert sample(weights, uniform).tolist() == [0, 3]
    with pytest.raises(TypeCheckError, match="uniform"):
        sample(weights, torch.rand(3))


def test_a_size_that_is_computed_from_another_is_compared():
    drafts, valid = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool)
    assert verify_matches(torch.zeros(2, 4, dtype=torch.long), drafts, valid)[0].tolist() == [3, 3]
    with pytest.raises(TypeCheckError, match="choices"):
        verify_matches(torch.zeros(2, 3, dtype=torch.long), drafts, valid)


def test_a_field_of_another_dtype_is_caught():
    with pytest.raises(TypeCheckError, match="queries"):
        Boundaries(torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int32), 1, 1)
