"""The recipe's `curation` settings: which rows are dropped, and why. Measures of the rules on single rows are stored in
`cleaned_interactions.quality` and `language` for every row, kept or not: query them before choosing a threshold."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from model_ops.files import LocalPath
from model_ops.jobs import Settings
from resources.curating.judge_endpoint import JudgeSettings
from resources.curating.languages import LANGUAGES


class StatusRules(Settings):
    """Drops failed, cut, refused and empty responses. A rule set to false keeps its rows."""

    drop_errors: bool = Field(True, description="Drop rows whose request failed or whose record carries an error")
    drop_cache_hits: bool = Field(True, description="Drop answers served from a cache, which repeat a logged one")
    drop_truncated: bool = Field(
        True, description="Drop answers that are not whole: cut at the token limit, or with a finish_reason that is not known"
    )
    drop_context_elsewhere: bool = Field(
        True,
        description="Drop rows whose prompt the provider completed with text that the log lacks: an earlier response, a "
        "stored prompt, a cache, retrieved files, or prompt tokens far beyond the messages",
    )
    drop_control_text: bool = Field(
        True, description="Drop answers that begin with control text of a model, or have its raw tool calls"
    )
    drop_refused: bool = Field(True, description="Drop rows with a content filter's message or a refusal in place of an answer")
    drop_refused_in_words: bool = Field(
        False,
        description="Drop short answers that begin by saying, in English, that they cannot help; such a refusal may be right",
    )
    drop_empty: bool = Field(
        True, description="Drop rows without a prompt, or without text or a tool call of a known kind in the answer"
    )


class ToolRules(Settings):
    """Drops rows with tool calls that no client could have run."""

    drop_broken: bool = Field(
        True,
        description="Drop rows with a call whose arguments are no JSON object or whose name is no tool of the request, "
        "or with a tool's message that answers no call before it",
    )


class LanguageRules(Settings):
    """Keeps answers by the language of their prose. Answers whose language is unknown (short ones, code) are kept."""

    detect: bool = Field(True, description="Detect the language of every answer (column `language`)")
    allow: list[str] = Field(default_factory=list, description="ISO 639 codes of the languages to keep. Empty: all")
    min_confidence: float = Field(0.5, ge=0, le=1, description="Confidence below which a language counts as unknown")

    @field_validator("allow")
    @classmethod
    def _known(cls, value: list[str]) -> list[str]:
        if unknown := sorted(set(value) - set(LANGUAGES)):
            raise ValueError(f"no detectable language has the code {', '.join(unknown)}; there are {', '.join(LANGUAGES)}")
        return sorted(set(value))

    @model_validator(mode="after")
    def _detected(self):
        if self.allow and not self.detect:
            raise ValueError("allow needs languages to be detected, and detect is false; leave `detect` out")
        return self


class RepetitionRules(Settings):
    """Drops answers that repeat themselves. `repeats`: a pattern of 1 to 13 words repeated in a row, the sign of a looping
    model, or a pattern of characters ("!!!!", "hahaha", line ends) that takes more than half of the answer. Lines of code or
    log may repeat twice as often; numbers, tables and what is fenced 32 times, but not sentences in them. The shares are
    Gopher's (Rae et al. 2021, table A1), for answers with at least 300 words of prose. Its bounds on frequent n-grams (0.20,
    0.18, 0.16) suit chats; those on lines and paragraphs (0.30; 0.20 of characters) and on repeated 5- to 10-grams (0.15 down
    to 0.10) would drop 14 of 62 long messages of good human conversations in OASST and 28 of 146 articles in Spec-Bench, so an
    answer is dropped when half of its text is repeated."""

    drop_repeated_patterns: bool = Field(
        True, description="Drop answers that repeat a pattern of 1 to 13 words, or of characters"
    )
    repeats: int = Field(32, ge=2, description="Repetitions in a row from which an answer is dropped")
    drop_repetitive: bool = Field(
        True, description="Drop answers of which half is repeated, or that repeat a few words all the time"
    )


class LengthRules(Settings):
    """Drops rows by the characters of prompt and answer."""

    min_prompt: int | None = Field(
        None, ge=0, description="Fewest characters of all messages but the answer. Left out: no bound"
    )
    max_prompt: int | None = Field(
        2_000_000, ge=1, description="Most characters of all messages but the answer. null: no bound"
    )
    min_answer: int | None = Field(None, ge=0, description="Fewest characters of the answer. Left out: no bound")
    max_answer: int | None = Field(500_000, ge=1, description="Most characters of the answer. null: no bound")

    @model_validator(mode="after")
    def _in_order(self):
        for what in ("prompt", "answer"):
            least, most = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if least is not None and most is not None and least > most:
                raise ValueError(f"min_{what} {least} is above max_{what} {most}: no row could pass")
        return self


class FeedbackRules(Settings):
    """Drops or keeps rows by their feedback."""

    drop_thumbs_down: bool = Field(True, description="Drop rows whose feedback is below zero")
    least: dict[Annotated[str, Field(min_length=1)], Annotated[float, Field(allow_inf_nan=False)]] = Field(
        default_factory=lambda: {"reward": 1.0},
        description="Lowest good value of feedback by its name; a lower value counts "
        "as a thumb down. Feedback of other names counts by its words and numbers",
    )
    most: dict[Annotated[str, Field(min_length=1)], Annotated[float, Field(allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description="Highest good value of feedback of which less is better, such as toxicity, by its name",
    )
    thumbs_down: Literal["drop", "prefer"] = Field(
        "drop",
        description="prefer: a dropped answer becomes the rejected answer of a preference row if a better answer to "
        "the same prompt exists",
    )
    keep_thumbs_up: bool = Field(
        False, description="Rows with feedback above zero pass the rules on language, repetition, length and refusals in words"
    )

    @model_validator(mode="after")
    def _one_end_is_good(self):
        if both := sorted(self.least.keys() & self.most.keys()):
            raise ValueError(f"{both[0]} is in least and in most; leave it in the one that names its good end")
        return self


class NearDuplicates(Settings):
    """Drops near duplicates: MinHash with banding proposes pairs, the Jaccard similarity of their word n-grams decides. A pair
    of similarity s is proposed with probability 1 - (1 - s**rows)**bands (Leskovec, Rajaraman, Ullman, Mining of Massive
    Datasets, 3.4.2): 0.994 at s = 0.7 with the defaults, 0.99999 at 0.8."""

    enabled: bool = Field(True, description="false: near duplicates stay")
    similarity: float = Field(0.7, gt=0, le=1, description="Jaccard similarity from which two rows are near duplicates")
    ngram: int = Field(5, ge=1, le=32, description="Words in a shingle")
    bands: int = Field(28, ge=1, le=256, description="Bands of a signature; more bands find more pairs and take more time")
    rows: int = Field(5, ge=1, le=32, description="MinHash values that must agree within a band")

    @property
    def hashes(self) -> int:
        return self.bands * self.rows


class SemanticDuplicates(Settings):
    """Drops rows that mean the same, by cosine similarity of a model's embeddings. Off by default."""

    enabled: bool = Field(False, description="true: drop semantic duplicates; needs `model`")
    model: Annotated[str, LocalPath("folder", "the directory of an embedding model")] | None = Field(
        None, min_length=1, description="Directory of an embedding model in the Hugging Face layout. Left out: none"
    )
    similarity: float = Field(0.95, gt=0, le=1, description="Cosine similarity from which two rows are duplicates")
    max_length: int = Field(512, ge=8, le=2**20, description="Longest row in tokens; a longer one is compared with none")

    @model_validator(mode="after")
    def _named(self):
        if self.enabled and not self.model:
            raise ValueError(
                "enabled is true and model is missing; semantic_duplicates needs `model`, the directory of an embedding model"
            )
        return self


class Decontamination(Settings):
    """Drops rows that contain an item of a suite under `evals`, so that scores on the suite are valid."""

    enabled: bool = Field(True, description="false: rows are not compared with the suites")
    threshold: float = Field(0.5, gt=0, le=1, description="Share of an item's words that a row's n-grams must cover")


class CurationSettings(Settings):
    """Which rows are kept, and in what form."""

    pii: Literal["redact", "keep"] = Field("redact", description="redact: typed placeholders replace personal data")
    pii_engine: Literal["builtin", "presidio"] = Field(
        "builtin",
        description="presidio: also redact what Microsoft Presidio finds (names, places); needs the extra "
        "`presidio` and its model on this machine",
    )
    exact_duplicates: bool = Field(True, description="Keep one of the rows that differ in case and white space only")
    near_duplicates: NearDuplicates = Field(default_factory=NearDuplicates, description="Rows that are nearly the same")
    semantic_duplicates: SemanticDuplicates = Field(
        default_factory=SemanticDuplicates, description="Rows that say the same in other words"
    )
    decontamination: Decontamination = Field(default_factory=Decontamination, description="Rows that hold evaluation items")
    status: StatusRules = Field(default_factory=StatusRules, description="Rules on failed, cut, refused and empty answers")
    tools: ToolRules = Field(default_factory=ToolRules, description="Rules on tool calls")
    language: LanguageRules = Field(default_factory=LanguageRules, description="Rules on the language of answers")
    repetition: RepetitionRules = Field(default_factory=RepetitionRules, description="Rules on answers that repeat themselves")
    length: LengthRules = Field(default_factory=LengthRules, description="Bounds on the length of prompts and answers")
    feedback: FeedbackRules = Field(default_factory=FeedbackRules, description="What feedback decides")
    judge: JudgeSettings | None = Field(
        None, description="Model that scores rows by quality and difficulty. Left out: no row is judged"
    )
    min_quality: float | None = Field(
        None, ge=1, le=10, description="Drop rows with a lower quality score; needs `judge`. Left out: no bound"
    )

    @model_validator(mode="after")
    def _judged_with_care(self):
        if self.min_quality is not None and self.judge is None:
            raise ValueError("min_quality needs scores: name the model that gives them under curation.judge")
        if self.judge is not None and self.pii == "keep":
            raise ValueError("judge sends rows to an endpoint, and with pii: keep they contain personal data; set pii: redact")
        return self

    def as_config(self) -> dict[str, Any]:
        reached = {"base_url", "api_key_env", "max_rows", "concurrency", "timeout_s", "retries", "request"}
        return self.model_dump(mode="json", exclude={"judge": reached})
