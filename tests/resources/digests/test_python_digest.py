import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from resources.digests import python as python_digest
from resources.digests.python import read_python

BEFORE = '''
"""What it is."""
from pydantic import BaseModel, Field
from resources.lake.tables import SCHEMAS
SCALE = 2.0
ROWS = [column("row_id", TEXT, description="id of the row")]
class Settings(BaseModel):
    """Said of the settings."""
    rows: int = Field(3, ge=1, description="Most rows")
    """Said of a field."""
def scaled(value: float, deep: bool = False) -> float:
    """Said of the function."""
    return SCALE * value if deep else f"{value:.3f} and {SCALE!r}"  # why
'''


def digest(text: str) -> str:
    return read_python(text).digest()


@pytest.mark.parametrize(("old", "new"), [
    ("What it is.", "What it really is."),
    ('"""What it is."""', ""),
    ("Said of the settings.", "Other words."),
    ('    """Said of a field."""\n', ""),
    ('    """Said of the function."""\n', ""),
    ("# why", "# for another reason"),
    ('description="Most rows"', 'description="At most so many " "rows", title="Rows"'),
    (', description="Most rows"', ""),
    ('description="id of the row"', 'description="the id"'),
    ("Field(3, ge=1, ", "Field(\n        3,\n        ge=1,\n        "),
    ("return SCALE * value", "return (SCALE * value)"),
    ('f"{value:.3f} and {SCALE!r}"', 'f"{value:.3f}" f" and {SCALE!r}"'),
    ('f"{value:.3f} and {SCALE!r}"', "f'{value:.3f} and {SCALE!r}'"),
    ("SCALE = 2.0", "if TYPE_CHECKING:\n    import torch\nSCALE = 2.0"),
    ("\n", "\r\n"),
])  # fmt: skip
def test_what_says_nothing_changes_nothing(old, new):
    assert old in BEFORE
    assert digest(BEFORE.replace(old, new)) == digest(BEFORE)


@pytest.mark.parametrize(("old", "new"), [
    ("SCALE = 2.0", "SCALE = 2"), ("SCALE = 2.0", "SCALE = -2.0"), ("SCALE = 2.0", "SCALE = '2.0'"),
    ("SCALE = 2.0", "SCALE = 2.0\nREVISION = 1"), ('column("row_id"', 'column("id"'), ("Field(3", "Field(4"), ("ge=1", "ge=2"),
    ("ge=1", "gt=1"), ("Field(3", "Other(3"), ("deep: bool = False", "deep: bool = True"), (":.3f", ":.4f"), (" and ", " And "),
    ("!r", "!s"), ("if deep", "if not deep"), ("SCALE * value", "value * SCALE"),
    ("resources.lake.tables import SCHEMAS", "resources.lake.tables import PARTITIONS"),
    ("resources.lake.tables", "resources.lake.lake"),
])  # fmt: skip
def test_what_can_change_a_result_changes_the_digest(old, new):
    assert old in BEFORE
    assert digest(BEFORE.replace(old, new)) != digest(BEFORE)


def test_a_description_counts_where_it_is_no_fields():
    assert digest('Tool(description="a")') != digest('Tool(description="b")')


def test_the_text_of_an_error_counts_since_datasets_keep_it():
    assert digest('raise ValueError("bad line")') != digest('raise ValueError("line")')


def written(tree):
    reading = python_digest._Reading()
    reading.node(tree)
    return reading.pieces()


def test_it_does_not_depend_on_what_another_python_adds_or_cuts(monkeypatch):
    """Empty fields, contexts and the pieces of an f-string are where versions of ast differ."""
    tree = ast.parse("def f(x):\n    return f'a{x:>{3}}'")
    plain = written(tree)
    function, joined = tree.body[0], tree.body[0].body[0].value
    monkeypatch.setattr(ast.FunctionDef, "_fields", (*ast.FunctionDef._fields, "type_params", "added_later"))
    python_digest._fields.cache_clear()
    function.type_params, function.added_later = [], None
    joined.values[:1] = [ast.Constant("", kind="u"), ast.Constant("a"), ast.Constant("")]
    joined.values[-1].format_spec.values.append(ast.Constant(""))
    assert written(tree) == plain
    python_digest._fields.cache_clear()


def test_it_is_the_same_in_every_release():
    """A golden value: who changes how trees are written gives every artefact a new version, and says so."""
    assert digest("x: int = 1\nassert 'ü\\u0600' and b'\\xff' and 1.5 and 2j and None and ...\n")[:16] == "b78ed12a4543008c"


def test_what_it_uses():
    tree = read_python(
        'import a.b\nfrom c import d\nif TYPE_CHECKING:\n    import e\nrun("one/two")\nrun(f"three/{d}")\n"""text"""'
    )
    assert tree.imports == {"a.b", "c", "c.d"}
    assert tree.strings == {"one/two", "three/"} and tree.beginnings == {"three/"}


ALL_FILES = """
import hashlib, runpy, sys
from pathlib import Path
sys.modules["digest"] = sys
digest, read = hashlib.sha256(), runpy.run_path(sys.argv[1], run_name="digest")["read_python"]
for file in sorted(Path(sys.argv[2]).glob("[mr]*/**/*.py")):
    digest.update(read(file.read_text(encoding="utf-8")).digest().encode())
print(digest.hexdigest())
"""


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.slow
def test_another_python_reads_the_same_from_every_file(version):
    """Of model_ops and resources; for each Python that is installed here."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"there is no python{version} here")
    project = Path(python_digest.__file__).parents[2]
    words = ["-c", ALL_FILES, python_digest.__file__, str(project)]
    ours, theirs = (
        subprocess.run([each, *words], capture_output=True, text=True, check=True).stdout for each in (sys.executable, python)
    )
    assert theirs == ours and len(ours) == 65
