"""Calibration of quantized weights: rows pass through a model block by block, and give codes, scales of inputs, ranges of the
key-value cache, and a scheme for each layer. Start with `walk.py`, then `weights.py`."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.calibration.auto_schemes import AutoPlan
    from model_ops.calibration.distillation import distil_rounding
    from model_ops.calibration.distillation_settings import DistilRoundingSettings
    from model_ops.calibration.gptq_codes import gptq
    from model_ops.calibration.scalable_inputs import CacheRanges
    from model_ops.calibration.walk import calibration_documents, show
    from model_ops.calibration.weights import CalibratedWeights, calibrated_weights

__getattr__, __dir__, __all__ = door(__name__, __file__)
