"""What this project takes from torch without a promise still does what it is taken for; and no other file takes any."""

import re
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

from model_ops.parallel.world import local_part
from model_ops.tensors import torch_internals
from model_ops.tensors.torch_internals import (
    FakeTensorMode,
    TorchDispatchMode,
    foreach_multiply,
    foreach_norm,
    has_forward_hooks,
    int8_matmul,
    shallow_copy,
    tree_leaves,
    unset_fake_temporarily,
)

MODEL_OPS = Path(torch_internals.__file__).parent
PRIVATE = re.compile(
    r"(?:from|import) (?:torch|transformers)(?:\.\w+)*\._\w|\btorch\._[a-z]|\._local_tensor\b"
    r"|\._(?:parameters|buffers|modules|forward_hooks|forward_pre_hooks)\b"
)


def test_no_other_file_takes_private_parts_of_torch_or_transformers():
    found = [
        f"{path.relative_to(MODEL_OPS)}:{number}: {line.strip()}"
        for path in sorted(MODEL_OPS.rglob("*.py"))
        if path.name != "torch_internals.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert not found, "put these into model_ops/tensors/torch_internals.py, with the reason:\n" + "\n".join(found)


def test_fake_tensors_have_a_device_and_no_storage():
    with FakeTensorMode(allow_non_fake_inputs=True):
        made = torch.empty(1 << 40, device="cuda:0", dtype=torch.bfloat16)
        assert made.device.type == "cuda" and (made @ made.new_empty(1 << 40)).shape == ()
        with unset_fake_temporarily():
            assert type(torch.ones(2)) is torch.Tensor and float(torch.ones(2).sum()) == 2.0


def test_a_dispatch_mode_sees_the_operations_of_the_backward_pass():
    seen = []

    class Sees(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), named=None):
            seen.append(str(operation))
            assert any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((arguments, named)))
            return operation(*arguments, **(named or {}))

    weight = torch.randn(3, 4, requires_grad=True)
    loss = (torch.randn(2, 3) @ weight).relu().sum()
    with Sees():
        loss.backward()
    assert "aten.threshold_backward.default" in seen and any("mm" in name for name in seen)


def test_int8_matmuls_are_exact_integers():
    generator = torch.Generator().manual_seed(0)
    # up to 63: oneDNN saturates sums of larger products where a processor has no VNNI (int8_linear.kernel_suits_cpu)
    left = torch.randint(-63, 64, (32, 64), generator=generator, dtype=torch.int8)
    right = torch.randint(-63, 64, (64, 16), generator=generator, dtype=torch.int8)
    found = int8_matmul(left, right)
    assert found.dtype == torch.int32 and torch.equal(found.long(), left.long() @ right.long())


def test_all_gradients_are_scaled_in_place_and_measured_at_once():
    gradients = [torch.randn(5), torch.randn(2, 3)]
    wanted = [gradient * 0.25 for gradient in gradients]
    norms = foreach_norm(gradients)
    assert all(torch.isclose(norm, gradient.norm()) for norm, gradient in zip(norms, gradients, strict=True))
    foreach_multiply(gradients, 0.25)
    assert all(torch.equal(one, other) for one, other in zip(gradients, wanted, strict=True))


def test_a_shallow_copy_computes_with_other_parameters_and_leaves_the_module_alone():
    linear, x = nn.Linear(3, 3), torch.randn(2, 3)
    linear.forward = lambda hidden: hidden * 0
    copied = shallow_copy(linear, {"weight": 2 * torch.eye(3), "bias": None})
    assert torch.equal(copied(x), 2 * x) and copied.bias is None
    assert torch.equal(linear(x), x * 0) and isinstance(linear.weight, nn.Parameter) and linear.bias is not None
    copied.in_features = 7
    assert linear.in_features == 3


def test_a_shallow_copy_has_other_submodules():
    both, x = nn.Sequential(nn.Identity(), nn.Identity()), torch.ones(1, 2)
    assert torch.equal(shallow_copy(both, modules={"1": nn.Softmax(-1)})(x), x / 2) and torch.equal(both(x), x)


def test_forward_hooks_are_seen():
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        layer = nn.Identity()
        assert not has_forward_hooks(layer)
        hook = getattr(layer, register)(lambda *_: None)
        assert has_forward_hooks(layer)
        hook.remove()
        assert not has_forward_hooks(layer)


def test_the_local_part_of_a_cut_tensor_is_its_memory_not_a_copy(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        part = torch.ones(4, 2)
        whole = DTensor.from_local(part, init_device_mesh("cpu", (1,)), [Shard(0)]).requires_grad_()
        found = local_part(whole)
        found.mul_(3)
        assert not found.requires_grad and float(part.sum()) == 24 and found.data_ptr() == part.data_ptr()
    finally:
        dist.destroy_process_group()
