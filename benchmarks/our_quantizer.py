"""Our quantization of a model with given calibration rows, in a process of its own: our side of benchmarks.real_quantize.

    python -m benchmarks.our_quantizer JOB.json RESULT.json

JOB: threads, model, rows (jsonl of token ids), scheme, method, output. RESULT: seconds and cpu_seconds (loading to saving,
without imports), peak_mb, output_error and output_error_rounded where rows calibrated.
"""

from model_ops.machine.process import keep_freed_memory, set_torch_environment

set_torch_environment()
keep_freed_memory()

import json  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks.llmcompressor_peer import peak_mb  # noqa: E402
from model_ops.calibration.weights import calibrated_weights  # noqa: E402
from model_ops.documents.documents import Document  # noqa: E402
from model_ops.documents.packing import to_batches  # noqa: E402
from model_ops.files.tensor_files import read_directory  # noqa: E402
from model_ops.jobs import Progress  # noqa: E402
from model_ops.models.blockwise import load_blockwise  # noqa: E402
from model_ops.models.model_directory import read_config, training_device  # noqa: E402
from model_ops.operations.quantize import calibration_dtype, quantize_directory  # noqa: E402
from model_ops.quantization.model_layers import block_layers, model_of_config  # noqa: E402
from model_ops.quantization.schemes import SCHEMES  # noqa: E402


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    source, output, scheme = Path(job["model"]), Path(job["output"]), SCHEMES[job["scheme"]]
    rows = [json.loads(line) for line in Path(job["rows"]).read_text().splitlines()]
    began, computed, found, told = time.perf_counter(), time.process_time(), None, {}
    if job["method"] != "rtn":
        documents = [Document(str(number), np.array(row), np.ones(len(row), bool)) for number, row in enumerate(rows)]
        model = load_blockwise(source, calibration_dtype(read_directory(source), training_device()), training_device())
        layers = block_layers(model_of_config(read_config(source)))
        found = calibrated_weights(
            model, layers, dict.fromkeys(layers.modules, scheme), to_batches(documents), output / ".work", job["method"]
        )
        told = {
            "output_error": sum(error.calibrated for error in found.errors) / len(found.errors),
            "output_error_rounded": sum(error.rounded for error in found.errors) / len(found.errors),
        }
    quantize_directory(source, output, Progress(), scheme, calibrated=found)
    taken = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - computed}
    Path(sys.argv[2]).write_text(json.dumps({**taken, "peak_mb": peak_mb(), **told}))


if __name__ == "__main__":
    main()
