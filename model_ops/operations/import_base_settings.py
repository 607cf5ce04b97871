"""Settings of operation `import_base`. Importing this file imports no torch."""

from pydantic import Field

from model_ops.jobs import Settings


class ImportBaseSettings(Settings):
    """base_model from elsewhere: a directory in the Hugging Face layout (a model, or a PEFT adapter), or an id on the Hub."""

    model: str = Field(min_length=1, description="a directory, or an id such as Qwen/Qwen3-0.6B")
    revision: str | None = Field(None, description="of a Hub id: a branch, tag or commit; the default branch when open")
    mtp_layer: bool = Field(
        False,
        description="whether it must carry a multi-token-prediction layer that is known here: a drafter is to begin from it",
    )
