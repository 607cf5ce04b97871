"""Predictions before a run: memory and speed of a training step on given devices, traced without storage, and which server
loads a quantization scheme on which device. Start with `choice.py`; `memory_plan.py` has the formulas, `servers.py` the table
of servers."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.planning.choice import choose
    from model_ops.planning.memory_plan import (
        BYTES_FROZEN,
        BYTES_TRAINED,
        CPU_PROCESS_GIB,
        GIB,
        HEAP_FRAGMENTATION,
        MemoryOf,
        MemoryPlan,
        MeshSizes,
        Needs,
        Setup,
        memory_of,
    )
    from model_ops.planning.needs import (
        READ_WIDTHS,
        Training,
        count_weights,
        decoding_bytes,
        needs_of,
        refuse_unmatched_targets,
    )
    from model_ops.planning.servers import (
        LLAMA_CPP,
        SUPPORT,
        PlaceError,
        cache_why_not,
        keeps_activations,
        parse_place,
        why_not,
    )
    from model_ops.planning.shape_rates import MICRO_BATCH_TOKENS, ShapeRates, measure_shapes
    from model_ops.planning.trainable_family import refuse_untrainable
    from model_ops.planning.unknown_family import try_family

__getattr__, __dir__, __all__ = door(__name__, __file__)
