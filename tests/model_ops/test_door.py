"""Doors of rooms: names load at first use, from the module that defines them."""

import sys

import pytest

DOOR = '''"""A room."""
from typing import TYPE_CHECKING
from model_ops.door import door
if TYPE_CHECKING:
    from planted_room import tools
    from planted_room.work import answer, ask
__getattr__, __dir__, __all__ = door(__name__, __file__)
'''


@pytest.fixture
def room(tmp_path, monkeypatch):
    folder = tmp_path / "planted_room"
    folder.mkdir()
    (folder / "__init__.py").write_text(DOOR)
    (folder / "tools.py").write_text("edge = 1\n")
    (folder / "work.py").write_text("answer = 42\ndef ask(): return answer\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [each for each in sys.modules if each.startswith("planted_room")]:
        del sys.modules[name]


def test_a_name_is_loaded_when_it_is_used(room):
    import planted_room

    assert "planted_room.work" not in sys.modules
    assert planted_room.__all__ == dir(planted_room) == ["answer", "ask", "tools"]
    from planted_room import ask, tools

    assert ask() == 42 and tools.edge == 1


def test_a_name_is_the_modules_own_also_after_a_change(room, monkeypatch):
    from planted_room import work

    monkeypatch.setattr(work, "answer", 7)
    from planted_room import answer

    assert answer == 7


def test_an_unknown_name_is_refused_with_the_rooms_name(room):
    with pytest.raises(ImportError, match=r"cannot import name 'nobody' from 'planted_room'"):
        from planted_room import nobody  # noqa: F401
