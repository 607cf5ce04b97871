"""docs/python.md: its blocks run from top to bottom, on a finished lake, as a reader would paste them."""

import re

import pytest

from tests.conftest import PROJECT

pytestmark = pytest.mark.slow

PAGE = PROJECT / "docs" / "python.md"


def blocks() -> list[str]:
    """Those that a lake with one release can run; `py` marks the one that needs two
    (tests/millrace/test_public_module.py)."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_every_block_runs(toy, tmp_path, monkeypatch, capsys):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "lake").symlink_to(toy.lake)
    (tmp_path / "logs").mkdir()
    (tmp_path / "suite.jsonl").write_text('{"prompt": "What is a race?", "answer": "A channel."}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    names = {}
    for block in blocks():
        exec(compile(block.replace("code-assistant", toy.workload), str(PAGE), "exec"), names)
    assert names["outcome"].state == "succeeded" and set(names["outcome"].seconds) == {"eval_suite"}
    assert names["by_model"].height >= 1 and names["train"].collect().height >= 1
    printed = capsys.readouterr().out
    assert "sorces there is no such key" in printed and "step\n" in printed and "2 no lake at" in printed


def test_the_page_names_every_public_name():
    import millrace

    page = PAGE.read_text(encoding="utf-8")
    missing = [
        name for name in ("open_lake", "load_recipe", "submit", "Error", "RecipeError") if f"millrace.{name}" not in page
    ]
    missing += [
        name for name in vars(millrace.Lake) if not name.startswith("_") and f".{name}(" not in page and f"`{name}`" not in page
    ]
    assert missing == []


@pytest.mark.parametrize("block", blocks())
def test_every_block_is_short_enough_to_read(block):
    assert len(block.splitlines()) <= 12
