"""Files of models and datasets: written whole or not at all, tensors by header, digests, chat templates, ids of the Hugging
Face Hub. Nothing here imports torch. Start with `atomic_files.py`, the only way in which the project writes a result."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.files import hub, template_files, tensor_files
    from model_ops.files.atomic_files import (
        file_lock,
        is_at,
        lock,
        renamed_when_complete,
        replacement,
        try_lock,
        unlock,
        write_json,
        write_text,
    )
    from model_ops.files.columns import bare, column, sentence
    from model_ops.files.digests import WeightNames, target_digest, vocabulary_digest, weight_file_stamps
    from model_ops.files.local_paths import Home, LocalPath
    from model_ops.files.standard_library import library_sources
    from model_ops.files.tensor_files import (
        DTYPE_BYTES,
        TORCH_NAMES,
        Layout,
        TensorFileError,
        TensorHeader,
        read_directory,
        write_stream,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)
