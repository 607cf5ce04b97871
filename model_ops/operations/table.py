"""Table of operations: name -> settings. A new operation is a file here, a file of its settings, and one line below.

`model_ops/operations/<name>.py` has `run(job, progress) -> metrics`. Importing this file imports no torch. Operations do not
import it, so that a change of one operation's settings does not change the version of another operation's artefacts."""

from typing import Any

from model_ops.completions import GenerateSettings, SampleSettings
from model_ops.evaluation import EvaluateSettings
from model_ops.operations.distill_settings import StudentSettings
from model_ops.operations.embed_settings import EmbedSettings
from model_ops.operations.import_base_settings import ImportBaseSettings
from model_ops.operations.measure_lengths_settings import LengthSettings
from model_ops.operations.merging.settings import MergeSettings
from model_ops.operations.preference_settings import PreferenceTuningSettings
from model_ops.operations.quantize_settings import QuantizeSettings
from model_ops.operations.rescore_settings import RescoreSettings
from model_ops.operations.reward_model_settings import RewardModelSettings
from model_ops.operations.sft_settings import SftSettings
from model_ops.operations.tiny_base_settings import TinyBaseSettings
from model_ops.reinforcement import RftSettings
from model_ops.speculators import AnySpeculatorSettings

OPERATIONS: dict[str, Any] = {
    "tiny_base": TinyBaseSettings, "import_base": ImportBaseSettings, "measure_lengths": LengthSettings, "sft": SftSettings,
    "preference": PreferenceTuningSettings, "reward_model": RewardModelSettings, "rft": RftSettings,
    "rescore": RescoreSettings, "merge": MergeSettings, "distill": StudentSettings, "quantize": QuantizeSettings,
    "generate": GenerateSettings, "sample_answers": SampleSettings, "speculator": AnySpeculatorSettings,
    "evaluate": EvaluateSettings, "embed": EmbedSettings,
}  # fmt: skip
"""Operation -> its settings: a Settings model, or a union of them."""
