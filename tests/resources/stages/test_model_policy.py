"""The policy lineage, over every combination of optional stages."""

import itertools

import pytest

from resources.stages.model_policy import ModelPolicy
from resources.stages.table import stage


def policy(*off, drafter_from=None):
    return ModelPolicy(frozenset(off), drafter_from)


def read_by(found: ModelPolicy, asset: str, model: str) -> str | None:
    """The model that `asset` reads in place of `model`; None if it reads none."""
    return next(iter(stage(asset).reads(found, stage(asset), model)), None)


@pytest.mark.parametrize("off", [(), ("merge",), ("student",), ("quantize",), ("merge", "student", "quantize")])
def test_each_stage_starts_from_the_one_before(off):
    found = policy(*off)
    assert read_by(found, "speculator", "student_model") is None
    for before, name in itertools.pairwise(found.stages):
        assert found.source_of(name) == before
    assert found.served == found.stages[-1]
    for gone in found.disabled:
        assert found.source_of(gone) in found.stages
        assert read_by(found, "evaluation_report", gone) == found.source_of(gone)


def test_a_switch_turns_off_every_stage_that_has_it():
    assert policy().disabled == [] and policy().speculator
    assert policy("speculator").disabled == ["speculator_dataset", "speculator"]
    assert not policy("speculator").speculator
    assert policy("curation.judge").disabled == ["judgements"]


def test_the_reference_is_the_served_model_before_quantization():
    assert policy().reference == "student_model"
    assert policy("student").reference == "merged_model"
    assert policy("student", "merge", "preference", "rft", "second_sft").reference == "sft_model"
    assert policy("quantize").reference == "student_model"


def test_a_student_that_is_off_is_replaced_by_its_teacher():
    assert policy("student").source_of("quantized_model") == "merged_model"
    assert policy("student", "merge", "preference", "rft", "second_sft").source_of("quantized_model") == "sft_model"
    assert (
        read_by(policy("student", "merge", "preference", "rft", "second_sft"), "quantized_model", "student_model")
        == "sft_model"
    )


def test_a_merge_reads_its_parent_and_the_base_model():
    found = policy("second_sft", "preference", "rft")
    assert (
        read_by(found, "merged_model", "sft_model") == "sft_model"
        and read_by(found, "merged_model", "base_model") == "base_model"
    )
    assert (
        read_by(found, "student_model", "merged_model") == "merged_model" and found.source_of("student_model") == "merged_model"
    )
    assert read_by(policy("sft", "second_sft", "preference"), "merged_model", "sft_model") == "base_model"


@pytest.mark.parametrize("quantized", [True, False])
def test_a_student_that_drafts_is_no_stage_before_what_is_served(quantized):
    found = policy(
        "merge", "preference", "rft", "second_sft", *([] if quantized else ["quantize"]), drafter_from="student_model"
    )
    assert "student_model" not in found.stages and "student_model" not in found.disabled
    assert found.drafting_model == "student_model" and found.source_of("student_model") == "sft_model"
    assert found.served == ("quantized_model" if quantized else "sft_model") and found.reference == "sft_model"
    assert read_by(found, "speculator", "student_model") == "student_model"
    assert read_by(found, "evaluation_report", "student_model") == "student_model"
    assert not quantized or read_by(found, "quantized_model", "student_model") == "sft_model"
    assert read_by(found, "speculator", "quantized_model") == found.served


def test_a_base_whose_own_layer_drafts_is_read_by_the_drafter():
    found = policy(drafter_from="base_model")
    assert read_by(found, "speculator", "base_model") == "base_model" and found.drafting_model is None
    assert read_by(policy(), "speculator", "base_model") is None
    assert read_by(policy(), "evaluation_report", "base_model") == "base_model"


def test_the_first_model_starts_from_none():
    with pytest.raises(ValueError, match="base_model starts from no other model"):
        policy().source_of("base_model")
