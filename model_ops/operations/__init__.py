"""The operations of a worker: one module for each, with its settings in a second module that imports no torch.

Each has `run(job, progress)`, which reads the job's inputs, calls the rooms below, writes the output directory and returns
metrics. Start with `table.py`, then read `sft.py`, the shortest one that trains."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.operations import measure_lengths_settings
    from model_ops.operations.distill_settings import StudentSettings
    from model_ops.operations.import_base_settings import ImportBaseSettings
    from model_ops.operations.limit_rows import ANSWER_ROWS, LIMIT_ROWS
    from model_ops.operations.merging.settings import BASE, LAKE_MODELS, PREFERRED, REINFORCED, TRAINED, MergeSettings
    from model_ops.operations.preference_settings import PreferenceTuningSettings
    from model_ops.operations.quantize import checked_source
    from model_ops.operations.quantize_settings import AUTO, QuantizeSettings
    from model_ops.operations.rescore_settings import RescoreSettings
    from model_ops.operations.reward_model_settings import RewardModelSettings
    from model_ops.operations.rft import measure_start
    from model_ops.operations.sft_settings import SecondSftSettings, SftSettings
    from model_ops.operations.table import OPERATIONS
    from model_ops.operations.tiny_base_settings import TinyBaseSettings
    from model_ops.operations.trials.every_operation import try_operations, write_material
    from model_ops.operations.trials.recorded import as_markdown, installed_versions, read_trial_record, reasons, rows_of

__getattr__, __dir__, __all__ = door(__name__, __file__)
