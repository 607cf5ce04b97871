"""What `millrace forget` prints before and after it erases; `retain` prints in commands/erase.py. Work: resources/erasing."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.erasing.forget_text import as_json, print_plan

__getattr__, __dir__, __all__ = door(__name__, __file__)
