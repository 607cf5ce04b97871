"""The policy lineage, over every combination of optional stages."""

import itertools

import pytest

from resources.releasing.model_policy import ModelPolicy


@pytest.mark.parametrize("student, quantized", list(itertools.product([True, False], repeat=2)))
def test_each_stage_starts_from_the_one_before(student, quantized):
    policy = ModelPolicy(student, quantized)
    assert policy.read_by("speculator", "student_model") is None
    for before, stage in itertools.pairwise(policy.stages):
        assert policy.source_of(stage) == before
    assert policy.served == policy.stages[-1]
    for gone in policy.disabled:
        assert policy.stand_in(gone) in policy.stages


def test_the_reference_is_the_served_model_before_quantization():
    assert ModelPolicy(True, True).reference == "student_model"
    assert ModelPolicy(False, True).reference == "sft_model"
    assert ModelPolicy(True, False).reference == "student_model"


def test_a_student_that_is_off_is_replaced_by_its_teacher():
    policy = ModelPolicy(student=False)
    assert policy.stand_in("student_model") == "sft_model"
    assert policy.source_of("quantized_model") == "sft_model"


@pytest.mark.parametrize("quantized", [True, False])
def test_a_student_that_drafts_is_beside_its_teacher_and_no_stage_before_what_is_served(quantized):
    policy = ModelPolicy(quantized=quantized, student_drafts=True)
    assert "student_model" not in policy.stages and "student_model" not in policy.disabled
    assert policy.served == ("quantized_model" if quantized else "sft_model") and policy.reference == "sft_model"
    assert policy.read_by("speculator", "student_model") == "student_model"
    assert policy.read_by("evaluation_report", "student_model") == "student_model"
    assert not quantized or policy.read_by("quantized_model", "student_model") == "sft_model"
    assert policy.read_by("speculator", "quantized_model") == policy.served


def test_a_base_whose_own_layer_drafts_is_read_by_the_drafter():
    assert ModelPolicy(base_drafts=True).read_by("speculator", "base_model") == "base_model"
    assert ModelPolicy().read_by("speculator", "base_model") is None
    assert ModelPolicy().read_by("evaluation_report", "base_model") == "base_model"
