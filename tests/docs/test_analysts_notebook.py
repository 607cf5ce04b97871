"""docs/notebooks/analysts.ipynb: its queries run on a finished lake, and its stored outputs are those of one run from top to
bottom."""

import json
import re
from base64 import b64decode

import pytest

import millrace
from tests.conftest import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("analysts notebook")]

PATH = PROJECT / "docs" / "notebooks" / "analysts.ipynb"
CELLS = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
QUERIES = [
    query
    for cell in CODE
    for quoted in re.findall(r'lake\.sql\("""(.*?)"""|lake\.sql\("(.*?)"\)', "".join(cell["source"]), re.DOTALL)
    for query in quoted
    if query
]


@pytest.mark.parametrize("sql", QUERIES, ids=range(len(QUERIES)))
def test_a_query_of_the_notebook_has_an_answer(toy, sql):
    name = toy.workload
    answer = millrace.open(toy.lake).sql(sql.replace("code-assistant", name).replace("code_assistant", name.replace("-", "_")))
    assert len(answer) > 0


def test_every_query_is_found():
    assert len(QUERIES) == "".join("".join(cell["source"]) for cell in CODE).count("lake.sql(") >= 8


def test_the_cells_were_run_in_order_without_an_error():
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    outputs = [output for cell in CODE for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert [at for at, cell in enumerate(CODE) if not cell["outputs"]] == [0], "all but the imports show something"


def test_the_plots_are_small_and_nothing_names_the_machine_that_made_them():
    plots = [
        b64decode(output["data"]["image/png"])
        for cell in CODE
        for output in cell["outputs"]
        if "image/png" in output.get("data", {})
    ]
    assert 5 <= len(plots) <= 8 and all(plot.startswith(b"\x89PNG") for plot in plots)
    assert sum(map(len, plots)) < 500_000
    text = json.dumps(
        [
            {
                **cell,
                "outputs": [output.get("text") or {**output["data"], "image/png": ""} for output in cell.get("outputs", [])],
            }
            for cell in CELLS
        ]
    )
    assert not re.search(r"(?<![\w$.~])/(?:home|work|root|tmp|Users)/", text)
