"""A plugin for vLLM: its model fails as soon as the file that MILLRACE_TEST_CRASH names exists. Standard library until then."""

import os
from pathlib import Path


def install():
    from vllm.v1.worker import gpu_model_runner

    runner = gpu_model_runner.GPUModelRunner
    inner = runner.execute_model

    def execute_model(self, *given, **named):
        if Path(os.environ["MILLRACE_TEST_CRASH"]).exists():
            raise RuntimeError("the test asked for this failure")
        return inner(self, *given, **named)

    runner.execute_model = execute_model
