"""Models in memory: loading and saving directories in the Hugging Face layout, attention that keeps packed documents apart, and
checks of what a server will load. Start with `model_directory.py`, then `attention.py` and `isolation.py` (families that carry
a state along the row)."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.models import gguf_file, verify_model
    from model_ops.models.attention import document_groups, largest_logits, packed_attention
    from model_ops.models.blockwise import BlockwiseModel, load_blockwise
    from model_ops.models.bypass import Bypass, bypass_blocks
    from model_ops.models.experts import use_grouped_experts
    from model_ops.models.float_weights import write_float_weights
    from model_ops.models.gguf_base import gguf_directory
    from model_ops.models.isolation import FAILURES, isolate_documents, keeps_apart
    from model_ops.models.model_directory import (
        add_end_of_text,
        check_model,
        end_of_text_ids,
        headers,
        load_model,
        load_tokenizer,
        read_config,
        refuse_misfit,
        save_model,
        training_device,
    )
    from model_ops.models.quantized_base import float_form
    from model_ops.models.tiny_families import scatter_weights, tiny_model
    from model_ops.models.verify_model import Defect, Shapes

__getattr__, __dir__, __all__ = door(__name__, __file__)
