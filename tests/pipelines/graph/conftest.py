"""What tests of the sensor `decide` and of requests share: a trained lake, a recipe, an instance of Dagster."""

import dagster as dg
import pytest

from pipelines.contract.recipe import read_recipe
from tests.resources.deciding.conftest import kept_lake, lake  # noqa: F401 - fixtures
from tests.resources.deciding.examples import RECIPE


@pytest.fixture(scope="session")
def recipe(tmp_path_factory):
    return read_recipe(RECIPE, tmp_path_factory.mktemp("recipe"))


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as made:
        yield made
