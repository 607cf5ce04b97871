"""Makes a smaller student from its teacher's weights: fewer layers (`layer_importance.py`) or narrower ones (`narrower.py`), by
measurements of which matter least. The operation `distill` trains the student afterwards."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.pruning.layer_importance import LayerSearch, evenly_spaced, least_important, make_student
    from model_ops.pruning.narrower import Widths, make_narrower, measure_widths, narrower_config, widths_of
    from model_ops.pruning.student_base import refuse_unusable_base

__getattr__, __dir__, __all__ = door(__name__, __file__)
