"""The errors of the public module, with the sentences that the command line prints."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from model_ops.jobs import UserError

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


class Error(Exception):
    """An error that the caller can fix; the message is one sentence. exit_code: the command line's exit code: 2 for a request
    that cannot be fulfilled, 1 for a failed check."""

    def __init__(self, message: str, exit_code: int = 2):
        super().__init__(message)
        self.exit_code = exit_code


class RecipeError(Error):
    """A recipe that cannot be used. The message has one problem per line. problems: (dotted key, sentence, line) of each; the
    key is empty for the recipe as a whole, the line is None if unknown."""

    def __init__(self, message: str, problems: list[tuple[str, str, int | None]]):
        super().__init__(message)
        self.problems = problems


@contextmanager
def in_public_words() -> Iterator[None]:
    """Raises the project's errors as `Error`; bugs keep their type."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        public = _public(error)
        if public is None:
            raise
        raise public from error


def public(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """A function whose errors are `Error`."""

    @wraps(function)
    def wrapped(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        with in_public_words():
            return function(*args, **kwargs)

    return wrapped


def _public(error: Exception) -> Error | None:
    # imports much of the project, so only after an error
    from pipelines.contract import RecipeProblemsError as RefusedRecipe
    from pipelines.storage import storage_sentence

    if isinstance(error, RefusedRecipe):
        problems = [(problem.key, problem.sentence, problem.line) for problem in error.problems]
        return RecipeError(str(error), problems)
    if isinstance(error, UserError):
        return Error(str(error), error.exit_code)
    refused = storage_sentence(error, None)
    return None if refused is None else Error(refused, 1)
