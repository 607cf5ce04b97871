"""metrics.jsonl, sent on while it grows."""

import json
import sys
import time
import types

import pytest

from resources.workshop.tracking import missing_package, tracked


def line(step, **more):
    return json.dumps({"phase": "sft", "step": step, "loss": 3.0 / step, "tokens_per_second": 100 * step, **more}) + "\n"


def seen(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_every_step_reaches_tensorboard_once_across_a_kill(tmp_path):
    pytest.importorskip("tensorboard")
    metrics = tmp_path / "metrics.jsonl"
    with tracked(metrics, "tensorboard", tmp_path / "tracking", "shop/sft_model/1"):
        metrics.write_text(line(1) + line(2))
        time.sleep(1.5)
        with metrics.open("a") as file:
            file.write(line(3) + '{"phase": "sft", "st')
    first = seen(tmp_path / "tracking/shop/sft_model/1")
    assert [step for step, _ in first["sft/loss"]] == [1, 2, 3]
    metrics.write_text(line(1) + line(2) + line(3) + line(4, validation_loss=2.5))  # the run continued
    with tracked(metrics, "tensorboard", tmp_path / "tracking", "shop/sft_model/1"):
        pass
    again = seen(tmp_path / "tracking/shop/sft_model/1")
    assert again["sft/loss"] == [(step, pytest.approx(3.0 / step)) for step in (1, 2, 3, 4)]
    assert again["sft/validation_loss"] == [(4, 2.5)]
    assert "sft/step" not in again


def test_weights_and_biases_gets_the_same_numbers(tmp_path, monkeypatch):
    logged = []
    run = types.SimpleNamespace(log=lambda numbers, step: logged.append((step, numbers)), finish=lambda: logged.append("end"))
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **given: logged.append(given) or run))
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(line(1))
    with tracked(metrics, "wandb", tmp_path, "shop/sft_model/1"):
        pass
    assert logged[0]["id"] == "shop-sft_model-1"
    assert logged[1] == (1, {"sft/loss": 3.0, "sft/tokens_per_second": 100.0})
    assert logged[2] == "end"


def test_mlflow_gets_the_same_numbers_and_a_continued_training_replaces_its_run(tmp_path, monkeypatch):
    runs, experiments = {}, {}

    class Client:
        def get_experiment_by_name(self, name):
            return experiments.get(name)

        def create_experiment(self, name):
            experiments[name] = types.SimpleNamespace(experiment_id=name)
            return name

        def search_runs(self, ids, query):
            return [
                types.SimpleNamespace(info=types.SimpleNamespace(run_id=run))
                for run, (experiment, name, _) in runs.items()
                if experiment in ids and query == f"attributes.run_name = '{name}'"
            ]

        def delete_run(self, run):
            del runs[run]

        def create_run(self, experiment, run_name):
            runs[str(time.monotonic_ns())] = experiment, run_name, []
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id=[*runs][-1]))

        def log_batch(self, run, metrics):
            runs[run][2].extend(metrics)

        def set_terminated(self, run):
            runs[run][2].append("end")

    monkeypatch.setitem(sys.modules, "mlflow", types.SimpleNamespace(MlflowClient=Client))
    monkeypatch.setitem(
        sys.modules, "mlflow.entities", types.SimpleNamespace(Metric=lambda name, value, _, step: (name, value, step))
    )
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    metrics = tmp_path / "metrics.jsonl"
    for text in (line(1), line(1) + line(2)):
        metrics.write_text(text)
        with tracked(metrics, "mlflow", tmp_path, "shop/sft_model/1"):
            pass
    [(experiment, name, logged)] = runs.values()
    assert (experiment, name, logged[-1]) == ("shop", "shop/sft_model/1", "end")
    assert [each for each in logged[:-1] if each[0] == "sft/loss"] == [("sft/loss", 3.0, 1), ("sft/loss", 1.5, 2)]


def test_a_tracker_that_fails_leaves_training_alone(tmp_path, monkeypatch, caplog):
    def broken(**_):
        raise ConnectionError("no way there")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=broken))
    (tmp_path / "metrics.jsonl").write_text(line(1))
    with tracked(tmp_path / "metrics.jsonl", "wandb", tmp_path, "shop/sft_model/1"):
        trained = True
    assert trained
    assert "tracking with wandb ended: ConnectionError: no way there" in caplog.text


def test_nothing_is_tracked_unless_asked(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(line(1))
    with tracked(tmp_path / "metrics.jsonl", "none", tmp_path / "tracking", "x"):
        pass
    assert not (tmp_path / "tracking").exists()
    assert missing_package("none") is None


def test_a_recipe_that_wants_what_is_not_installed_is_refused(tmp_path, monkeypatch):
    import resources.workshop.tracking
    from pipelines.contract.recipe import load_recipe
    from pipelines.contract.text import RecipeProblemsError

    monkeypatch.setattr(resources.workshop.tracking.importlib.util, "find_spec", lambda name: None)
    path = tmp_path / "recipe.yaml"
    path.write_text("workload: shop\nbase_model: tiny\nsources: {logs: {uri: .}}\ntracking: tensorboard\n")
    with pytest.raises(RecipeProblemsError, match="tensorboard is not installed"):
        load_recipe(path)
