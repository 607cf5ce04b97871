"""Says in one sentence, in the run's own log, why a step failed: Dagster shows the whole chain of errors instead.

    dg.define_asset_job("train", ..., hooks={failure_in_one_sentence})

The sentence is that of the project's own error, as `millrace run` prints it. Of an error that is not meant for a
person (a bug), the kind alone is named, since its message may hold what it read.
"""

from collections.abc import Iterator

import dagster as dg

from pipelines.storage.storage_errors import storage_sentence
from resources.artefacts.source_digest import PACKAGES


@dg.failure_hook(name="failure_in_one_sentence")
def failure_in_one_sentence(context: dg.HookContext) -> None:
    """Logs the sentence as an error of the step."""
    step = (context.step_key or "").split("__")[-1]
    context.log.error(f"{step}: {sentence_of(context.op_exception)}")


def sentence_of(error: BaseException | None) -> str:
    """What a person needs to know of a step's error."""
    if storage := storage_sentence(error, None):
        return storage
    chain = list(_chain(error))
    for each in chain:
        if isinstance(each, dg.Failure):
            return each.description or "it failed without a reason"
        if type(each).__module__.split(".")[0] in PACKAGES:
            return " ".join(str(each).split())
    kind = type(chain[0]).__name__ if chain else "an unknown error"
    return f"{kind}, which is a bug of millrace or of what it uses: please report it with the traceback of this step"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that caused it, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__
