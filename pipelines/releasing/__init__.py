"""Releases on the terminal: what `verify`, `approve`, `withdraw`, `rollback`, `releases`, `compare` and `measure` print.
measuring.py measures a running server's speed, latency and acceptance. Decisions on an endpoint are in resources/endpoints."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.releasing.measuring import measure_servers, print_speeds, read_concurrency, read_prompts, speeds_as_json
    from pipelines.releasing.release_list import (
        comparison_as_json,
        notes_on_erasures,
        print_comparison,
        print_releases,
        releases_as_json,
        releases_of,
        verify_directory,
    )
    from pipelines.releasing.release_text import say_approved, say_named, say_rolled_back, say_waiting, say_withdrawn, show

__getattr__, __dir__, __all__ = door(__name__, __file__)
