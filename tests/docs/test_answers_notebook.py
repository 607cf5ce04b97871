"""docs/notebooks/answers.ipynb: its stored outputs are those of one run from top to bottom."""

import json
import re

from tests.conftest import PROJECT

CELLS = json.loads((PROJECT / "docs" / "notebooks" / "answers.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def test_the_cells_were_run_in_order_without_an_error():
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    outputs = [output for cell in CODE for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]


def test_it_shows_prompts_with_both_answers_and_names_no_machine():
    page = "".join(CODE[-1]["outputs"][0]["data"]["text/html"])
    said = "".join(CODE[2]["outputs"][0]["text"])
    assert page.count("<article>") == page.count('<div class="two">') == int(said.split()[0]) > 20
    assert "<del>" in page and "<ins>" in page and "<script" not in page
    text = json.dumps(CELLS)
    assert len(text) < 400_000 and not re.search(r"(?<![\\w$.~])/(?:home|work|root|tmp|Users)/", text)
