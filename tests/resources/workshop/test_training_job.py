"""Settings of a job: what assets hand to a worker is read there again."""

import pytest

from model_ops.jobs.job import Job
from model_ops.operations.distill_settings import StudentSettings
from model_ops.operations.quantize_settings import QuantizeSettings
from model_ops.operations.sft_settings import SftSettings
from model_ops.operations.table import OPERATIONS
from resources.workshop.training_job import counted_settings


@pytest.mark.parametrize(
    "operation, settings",
    [
        ("sft", SftSettings()),
        ("distill", StudentSettings()),
        ("distill", StudentSettings(base="/models/small")),
        ("quantize", QuantizeSettings()),
        ("quantize", QuantizeSettings(scheme="w4a16", distil={"enabled": True})),
    ],
)
def test_a_job_with_every_setting_named_is_read_as_the_recipe_was(tmp_path, operation, settings):
    config = settings.resolved().model_dump(mode="json")
    job = Job(operation=operation, output=tmp_path, settings=config)
    assert job.settings_as(OPERATIONS[operation]).model_dump(mode="json") == config


def test_settings_that_change_no_result_make_no_new_version_also_within_an_operation():
    def counted(**distil):
        return counted_settings(QuantizeSettings(scheme="w4a16", distil={"enabled": True, **distil}).resolved())

    assert counted(dry_run=False, keep_checkpoints=7, activation_checkpointing="full") == counted()
    assert counted(seed=7) != counted()
