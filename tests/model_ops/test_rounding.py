"""Trained weights in a bfloat16 file: exact on average, so that a small update is not lost."""

import numpy as np
import pytest
import torch

from model_ops.jobs import Progress
from model_ops.models import load_model, save_model
from model_ops.parallel import World
from model_ops.tensors import round_weight, saved_update
from model_ops.training import TuningSettings, save_tuned, validated_as_saved
from model_ops.training.trainer import TrainingResult


def test_rounding_is_exact_on_average_and_takes_a_neighbour():
    steps = torch.arange(-8, 9).double() / 16
    for value in (1.0, -3.0, 2.5e-5):
        spacing = float(torch.nextafter(torch.tensor(value).bfloat16().abs(), torch.tensor(torch.inf).bfloat16()) - abs(value))
        exact = (value + steps * spacing).float()
        draws = torch.stack([round_weight(exact, torch.bfloat16, f"draw {number}") for number in range(4_000)]).double()
        assert (draws - exact.double()).abs().max() < spacing
        np.testing.assert_allclose(draws.mean(0).numpy(), exact.double().numpy(), atol=5 * spacing / 2 / 4_000**0.5)


def test_what_bfloat16_holds_stays_and_the_name_decides_the_draw():
    held = torch.randn(1_000).bfloat16()
    assert torch.equal(round_weight(held.float(), torch.bfloat16, "a"), held)
    weight = torch.randn(1_000)
    assert torch.equal(round_weight(weight, torch.bfloat16, "a"), round_weight(weight.clone(), torch.bfloat16, "a"))
    assert not torch.equal(round_weight(weight, torch.bfloat16, "a"), round_weight(weight, torch.bfloat16, "b"))
    assert round_weight(weight, torch.float32, "a") is weight


def test_errors_of_one_training_after_another_do_not_add_up():
    """Ten updates of a tenth of the spacing, saved each time: about a third of the weights never move, and none moves ten times."""
    spacing, weight = 2**-7, torch.ones(20_000)
    for _ in range(10):
        weight = round_weight(weight + 0.1 * spacing, torch.bfloat16, "a").float()
    moved = (weight - 1) / spacing
    assert moved.mean() == pytest.approx(1, abs=0.05) and moved.std() == pytest.approx(0.95, abs=0.1)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 3.4028234e38, -3.4028234e38, 0.0])
def test_values_at_the_ends_are_rounded_as_torch_rounds_them(value):
    weight = torch.full((64,), value)
    torch.testing.assert_close(round_weight(weight, torch.bfloat16, "a"), weight.bfloat16(), equal_nan=True)
    bits = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)  # a NaN whose bits would run over
    assert round_weight(bits, torch.bfloat16, "a").isnan().all()


def test_a_training_of_small_steps_is_in_the_file(tiny_model, tiny_tokenizer, tmp_path):
    """Updates of a tenth of bfloat16's spacing: rounding to nearest would give the base model back."""
    start, model = load_model(tiny_model), load_model(tiny_model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * 2**-8 * parameter.abs() * torch.randn(parameter.shape, generator=generator).sign()
    nearest = [
        saved_update(*tensors)
        for tensors in zip(start.parameters(), model.parameters(), [p.bfloat16() for p in model.parameters()], strict=True)
    ]
    assert sum(held for held, _ in nearest) < 0.2 * sum(size for _, size in nearest)
    numbers = save_tuned(model, tiny_tokenizer, tiny_model, TuningSettings(), tmp_path / "saved")
    assert numbers["saved_update"] == pytest.approx(1, abs=0.25)
    again = load_model(tmp_path / "saved")
    assert any(not torch.equal(one, other) for one, other in zip(start.parameters(), again.parameters(), strict=True))
    save_model(again, tiny_tokenizer, tmp_path / "again")  # what a file holds is rounded to itself
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "saved/model.safetensors").read_bytes()


@pytest.mark.parametrize(("gained", "warns"), [(3.0, True), (5.0, False)])
def test_a_training_that_rounding_undoes_is_named(tiny_model, gained, warns):
    """A loss that sees each weight's distance from a value that bfloat16 has not, which rounding brings back by a known part."""
    model, events = load_model(tiny_model), []
    weight = model.get_input_embeddings().weight

    class Heard(Progress):
        def event(self, kind, **numbers):
            events.append((kind, numbers["message"]))

    with torch.no_grad():
        weight.fill_(1 + 2**-8)  # half of bfloat16's spacing: every rounding moves it by as much, up or down
    result = TrainingResult(
        1, 0, 1.0, 1, 1.0, 1.0, 0.0, {"validation_loss": 0.0}, "float32", before={"validation_loss": gained}
    )
    numbers = validated_as_saved(
        model,
        lambda: {"validation_loss": float((weight - 1 - 2**-8).abs().mean() * 2**8)},
        result,
        World.alone(torch.device("cpu")),
        Heard(),
        "sft",
    )
    assert numbers == {"saved_validation_loss": pytest.approx(1.0)}
    assert [kind for kind, _ in events] == ["warning"] * warns
    if warns:
        assert "fell from 3.0000 to 0.0000, and is 1.0000 with the weights as saved" in events[0][1]
