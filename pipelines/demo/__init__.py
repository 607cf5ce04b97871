"""`millrace demo`: fetches a small real model (model.py), writes a product's logs with known faults (traffic.py), chooses steps
that fit the machine, and runs the full pipeline on them (demo.py). compile_kernels.py compiles the numba loops for which a
first run would wait. The demo uses the public way of running a recipe and nothing of its own."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.demo.demo import QUICK, REAL, run_demo

__getattr__, __dir__, __all__ = door(__name__, __file__)
