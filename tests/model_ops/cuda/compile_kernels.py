"""Compiles every Triton kernel for a compute capability, without a device, from the arguments that it is launched with.

    python -m tests.model_ops.cuda.compile_kernels 90        # prints {"norm_rows": bytes of machine code, ...}

Run by test_compiled_kernels.py in a process without Triton's interpreter.
"""

import json
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from model_ops.calibration import gptq_codes, triton_gptq
from model_ops.tensors import cuda_rows, triton_rows

TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}


class Compiled:
    """Stands in for a kernel: a launch compiles it."""

    def __init__(self, kernel, target, sizes):
        self.kernel, self.target, self.sizes = kernel, target, sizes

    def __getitem__(self, grid):
        return self

    def __call__(self, *given, num_warps=4, **options):
        types = [
            TYPES[each.dtype] if isinstance(each, torch.Tensor) else {int: "i32", float: "fp32"}[type(each)] for each in given
        ]
        names = self.kernel.arg_names
        signature = dict(zip(names, types, strict=False)) | dict.fromkeys(options, "constexpr")
        constants = {(names.index(name),): value for name, value in options.items()}
        source = ASTSource(self.kernel, signature, constants)
        made = triton.compile(source, target=self.target, options={"num_warps": num_warps})
        self.sizes.setdefault(self.kernel.__name__, []).append(len(made.asm["cubin"]))


def main(capability: int) -> dict[str, list[int]]:
    sizes: dict[str, list[int]] = {}
    target = GPUTarget("cuda", capability, 32)
    for module in (triton_rows, triton_gptq):
        for name, value in list(vars(module).items()):
            if isinstance(value, triton.runtime.JITFunction):
                setattr(module, name, Compiled(value, target, sizes))
    for dtype in (torch.float32, torch.bfloat16):
        cuda_rows._pairs(torch.device("cpu"), dtype)
    for width, dtype in ((4_096, torch.bfloat16), (14_336, torch.bfloat16)):  # rows of large models
        x, weight = torch.zeros(3, width, dtype=dtype), torch.zeros(width, dtype=dtype)
        summed, _, scales = cuda_rows.norm(x, x, weight, 1e-5, 0.0, True, dtype)
        cuda_rows.norm_gradient(x, x, summed, weight, scales, 0.0, True)
    block = torch.zeros(64, 128)
    gptq_codes.round_block_in_one_pass(block, torch.eye(128), torch.ones(64, 128))
    return sizes


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
