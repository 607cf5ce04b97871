"""Several processes and devices: meshes, FSDP2, tensor, context and expert parallelism. Model code names no mesh axis:
`place.py` shards a model from outside, by the rules of `sharding.py`. Start with `world.py`; `launch.py` starts the processes
of a job."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.parallel.collectives import gather_parameters, leads, wait_for_all, whole_tensor, whole_tensors
    from model_ops.parallel.launch import local_threads, process_group, rank, report_failure, started_by_torchrun
    from model_ops.parallel.mesh import Context, pad
    from model_ops.parallel.mesh_settings import MeshSettings
    from model_ops.parallel.world import World, local_part, run_precision

__getattr__, __dir__, __all__ = door(__name__, __file__)
