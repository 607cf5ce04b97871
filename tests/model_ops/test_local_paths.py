"""Keys that name a path of this machine: absolute by the validation's context, and checked."""

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import ValidationError

from model_ops.files.local_paths import Home, LocalPath
from model_ops.jobs.job import Settings


class Section(Settings):
    enabled: bool = True
    model: Annotated[str, LocalPath("folder", "a model, or `last`", ("last",))] | None = None
    tool: Annotated[str, LocalPath("program", "a program")] | None = None


def read(folder, **given):
    return Section.model_validate(given, context=Home(folder, lambda path, home: str(home / path)))


def test_a_path_is_absolute_and_a_word_stays(tmp_path):
    (tmp_path / "drafter").mkdir()
    assert read(tmp_path, model="drafter").model == str(tmp_path / "drafter")
    assert read(tmp_path, model="last").model == "last" and read(tmp_path).model is None
    assert read(tmp_path, tool="/bin/sh").tool == "/bin/sh"


def test_what_is_not_there_is_refused_unless_the_section_is_off(tmp_path):
    with pytest.raises(ValidationError, match=r"there is no directory .*none; give a model, or `last`"):
        read(tmp_path, model="none")
    with pytest.raises(ValidationError, match=r"there is no program .*none; give a program"):
        read(tmp_path, tool="none")
    assert read(tmp_path, enabled=False, model="none").model == str(tmp_path / "none")


def test_settings_of_a_job_keep_their_paths():
    assert Section(model="none", tool="none").model == "none"


def test_a_text_that_can_be_no_path_is_one_sentence(tmp_path):
    with pytest.raises(ValidationError, match="this is not a path on this machine; give a model"):
        read(Path(tmp_path), model="~nobody-of-this-name/x")
