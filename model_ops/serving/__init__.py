"""Starts inference servers: the command line of vLLM and SGLang for a release, its environment, and a process that ends with
its owner. Start with `service.py`, then `command.py` and `server_process.py`. `talk.py` is the process behind `millrace chat`.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.serving import lora_flags, server_guard
    from model_ops.serving.command import (
        MODULES,
        has_package,
        program_of,
        runs_drafter,
        server_environment,
        serving_of,
        speculative_config,
        varies_by_batch_size,
        words_of,
    )
    from model_ops.serving.cpu_dtype import SERVES_FLOAT32, dtype_words
    from model_ops.serving.server_process import NotRunnable, RunningServer, ServerFailed, running_server
    from model_ops.serving.service import (
        DRAIN_S,
        LOGGING_CONFIG,
        PREFIX,
        ServerKind,
        Service,
        fingerprint,
        logging_config,
        service_environment,
        tool_words,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)
