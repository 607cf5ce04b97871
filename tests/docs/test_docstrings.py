"""Files that docstrings of the product name are there and are other files, and so is what programs in strings of tests import."""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from model_ops.door import door_names

PROJECT = Path(__file__).resolve().parents[2]
PRODUCT = ("assets", "millrace", "model_ops", "pipelines", "resources", "stores")
FILE = re.compile(r"(?<![\w*./)-])[\w./-]*\w\.(?:py|sql)\b(?!\()")
OF_OTHERS = re.compile(
    r"(vllm|v1|sglang|litellm|renderers|types|load)/"
    r"|(ast_checker|capture_callback|compressed_tensors_moe|convert_hf_to_gguf|response_stream_event)\.py"
)
IMPORT = re.compile(rf"\bfrom (?:{'|'.join(PRODUCT)})\b.* import ")
STRING = re.compile(r"\"\"\"(?:[^\\]|\\.)*?\"\"\"|\"[^\"\n]*\"|'[^'\n]*'")
INVENTED = {"test_docstrings.py", "test_import_graph.py", "test_source_digest.py", "test_draft_model.py"}
FILES = [path.as_posix() for top in (*PRODUCT, "sql", "tests", "benchmarks") for path in (PROJECT / top).rglob("*.*")]
PATH_ENDS = {path[at + 1 :] for path in FILES for at in range(len(str(PROJECT)), len(path)) if path[at] == "/"}

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
OF_USERS = {"rewards.py", "envs.py", "agent.py", "FILE.py"}


def missing_files(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)) if {*FILE.findall(text)} - PATH_ENDS - OF_USERS else ():
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield from (
                name for name in {*FILE.findall(str(node.value.value))} - PATH_ENDS - OF_USERS if not OF_OTHERS.match(name)
            )


@cache
def names(module: str) -> set[str]:
    path = PROJECT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    found = {getattr(n, "asname", "") or getattr(n, "name", "") or getattr(n, "id", "") for n in ast.walk(ast.parse(text))}
    return found | {*door_names(text)} | {p.stem for p in path.glob("*")}


def missing_imports(text: str) -> Iterator[str]:
    for string in ast.walk(ast.parse(text)) if IMPORT.search("\n".join(STRING.findall(text))) else ():
        with suppress(SyntaxError):
            is_program = isinstance(string, ast.Constant) and IMPORT.search(str(string.value))
            for node in ast.walk(ast.parse(string.value)) if is_program else ():
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PRODUCT):
                    yield from (f"{node.module}.{one.name}" for one in node.names if one.name not in names(node.module))


def names_itself(file: str, text: str) -> bool:
    """Whether a docstring sends its reader to its own file, but for a command that runs it, or an import."""
    own = "|".join(map(re.escape, (file, file.removesuffix(".py").replace("/", "."), file.rpartition("/")[2])))
    name = re.compile(rf"((?:python|PYTHON|torchrun|from)[\w .-]*\s)?(?<![\w./])({own})(?![\w.]\w)")
    docs = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, DOCUMENTED)]
    return any(not command for doc in docs for command, _ in name.findall(doc))


def test_no_docstring_sends_its_reader_to_its_own_file():
    """But for the one whose copies are read elsewhere."""
    assert names_itself("a/loss.py", '"""See a.loss."""') and names_itself("a/loss.py", '"""See loss.py"""')
    assert not names_itself("a/loss.py", '"""python -m a.loss X; b/loss.py"""')
    paths = [path for folder in PRODUCT for path in (PROJECT / folder).rglob("*.py")]
    files = {path.relative_to(PROJECT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    assert [file for file, text in files.items() if names_itself(file, text)] == ["resources/releasing/verify_package.py"]


def dead(missing, *folders: str) -> dict[str, list[str]]:
    paths = [path for folder in folders for path in (PROJECT / folder).rglob("*.py") if path.name not in INVENTED]
    found = {str(path.relative_to(PROJECT)): [*missing(path.read_text(encoding="utf-8"))] for path in paths}
    return {path: names for path, names in found.items() if names}


def test_what_texts_name_is_there():
    assert [*missing_files('"""See model_ops/door.py, model_ops/doors.py."""; x = "doors.py"')] == ["model_ops/doors.py"]
    program = "S = 'from model_ops.door import door, doors; from model_ops import door, loss; from model_ops.rooms import a'"
    assert [*missing_imports(program)] == ["model_ops.door.doors", "model_ops.loss", "model_ops.rooms.a"]
    assert (dead(missing_files, *PRODUCT), dead(missing_imports, "tests")) == ({}, {})
