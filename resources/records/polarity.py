"""Which end of a score is good, by its name, and what the words of feedback say: one table for every format.
good_end("user_score") is 1 (more is better), of "hallucination" -1, of "toxicity_check" 0 (the name does not tell)."""

import re
from functools import lru_cache

SAID: dict[str, tuple[str, int]] = {
    word: (kind, side)
    for kind, side, words in (
        (
            "side",
            1,
            """
            up thumbs_up thumb_up thumbsup upvote upvoted like liked love loved good positive 👍 :thumbsup: :+1: correct
            accurate helpful useful factual faithful grounded relevant safe non_toxic nontoxic pass passed accept accepted
            approved desirable desired chosen preferred satisfied resolved excellent great perfect amazing awesome
        """,
        ),
        (
            "side",
            -1,
            """
            poor terrible awful horrible severe down thumbs_down thumb_down thumbsdown downvote downvoted dislike disliked bad
            negative 👎 :thumbsdown: incorrect wrong inaccurate unhelpful not_helpful useless hallucinated unfaithful ungrounded
            irrelevant unrelated unsafe toxic harmful fail failed reject rejected undesirable undesired dissatisfied unresolved
        """,
        ),
        ("truth", 1, "true yes y t detected"),
        ("truth", -1, "false no n f not_detected"),
        (
            "nothing",
            0,
            """
            none null nil nan removed cleared retracted deleted unset neutral undo undone withdrawn revoked reset no_vote
        """,
        ),
    )
    for word in words.split()
}
"""A word, spelled by `plain_word`: its side; whether what the name says is so; or that a vote is taken back."""

_NEGATED = {
    f"{no}_{word}": (kind, -side)
    for word, (kind, side) in SAID.items()
    for no in ("not", "non")
    if kind == "side" and word.isalpha()
}
SAID |= {word: said for word, said in _NEGATED.items() if word not in SAID}
_GRADES = {
    "positive", "negative", "excellent", "great", "perfect", "amazing", "awesome", "poor", "terrible", "awful", "horrible",
    "severe",
}  # fmt: skip
"""Beside a prompt, these are rather what the answer names: a sentiment, the grade of an essay."""

_BAD = re.compile(
    r"hallucinat|toxi|harm(?!less|on)|bias|bad(ly|ness)?$|weak|slow|criminal|misogyn|insensitiv|controvers|lazy"
    r"|wrong|wors[et]|negativ|(thumbs?)?down(vote)?[sd]?$|hate|hatred|offens|abus|insult"
    r"|obscen|profan|vulgar|threat|violen|danger|malicious|sexual|nsfw$|fabricat|confabul|contradict|stereotyp|racis|discriminat"
    r"|jailbr(eak|oken)|frustrat|annoy|anger|angry|disappoint|complain|useless|pointless|nonsens|gibberish|garbage|plagiar|spam|perplex"
    r"|rude|poor|repetit|verbos|redundan|sycophan|evas|decept|manipulat|unsaf|inferior"
    r"|(un|in)(help|success|accura|correct|complet|coheren|consist|appropriat|safe|secure|suffici|effect|ground|faith|fact|fair|true|clear|resolv"
    r"|answer|support|verif|certain|natural|profession|satisf|happy|relat|accept|usab|desir|like|trust|want|friend|ethic|reliab|read)"
    r"|(im|ir|il)(polite|proper|plausib|precis|relev|respons|rational|logic|legal)"
    r"|dis(satisf|lik|trust|agree|honest|respect|approv)|mis(lead|inform|interpret|under|repres|match|us)"
)
"""Beginnings of words for what is bad whatever is said of it."""
_FAULT = re.compile(
    r"err(or|ors|oneous)?$|fail|refus|den(y|ied|ial)|reject|escalat|handoff|report(s|ed)?$|flag(s|ged)?$|issue|problem|bug(s|gy)?$|defect|fault|mistake"
    r"|risk|severity|distance|loss|leak|pii$|violat|inject|attack|crash|timeout|exception|broken|regenerat|retr(y|ied|ies)$|abandon|churn"
    r"|miss(ed|es|ing)?$|invalid|truncat|confus|outdated|lie[sd]?$|penalty|cancel|empty$|reopen|refund|filtered$"
    r"|(wer|cer|mae|mse|rmse|nll|ppl)$"
)
"""Beginnings of words for what may be dealt with well: an error is bad, and error handling is not."""
_REMEDY = re.compile(r"resol[uv]|solv|fix|handl|recover|mitigat|redact|pass(ed|es)?$")
_GOOD = re.compile(
    r"good|great|correct|accura|help|useful|relev|saf[ei]|faith|factual|ground|coheren|complet|quality|appropriat|ok$|positiv|harmless"
    r"|(thumbs?)?up(vote)?[sd]?$|lik(e|ed|es)$|satisf|accept|success|adher|win$|confiden|concis|fluen|clar|(un|non|de)(bias|toxi|harm)"
)
_LOW = re.compile(r"bad(ly)?$|poor|weak|inferior|worse")
"""What makes a good word after it bad."""
_NOT = re.compile(r"(no|not|non|never|low(er)?|less|few(er)?|lack(s|ed|ing)?)$")
_UNDONE = re.compile(
    r"anti$|without$|block(s|ed)?$|remov|resist|toleran|robust|prevent|avoid|avert|absen|defen[cds]|protect|immun|reduc|thwart"
)
"""What is good of bad things, and of others says nothing."""
_UNSURE = re.compile(r"(checks?|tests?|guard.*|filter(s|ing)?|detector|moderation)$")
_MEASURE = re.compile(r"(latency|ttft|duration|costs?|price|effort|elapsed)$")
_COUNT = re.compile(r"(tokens|counts?|words|chars|characters|length|turns|steps|seconds|ms|size|num|number)$")
_RATING = re.compile(
    r"(user|customer|human|agent|answer|response|feedback|scores?|ratings?|rated?|votes?|stars?|thumbs?|rewards?|csat|nps"
    r"|preferences?)$"
)
"""Words of names that are plainly praise."""
_PHRASES = {r"lower(_is)?_better|minimi[sz]e": -1, r"higher(_is)?_better|maximi[sz]e": 1,
    r"(^|_)(up_(or_)?(thumbs?_)?down|like_(or_)?dislike|good_(or_)?bad|positive_(or_)?negative|correct_(or_)?incorrect)": 1,
    r"false_(posi|nega)tive|g[ai]ves?_up|not_answer|protected_material": -1,
    r"(^|_)(off_?(topic|brand|policy)|out_of_(scope|date|context)|too_[a-z])": -1,
    r"(^|_)(correct|appropriate|proper|safe)_(refus|reject|escalat)": 1,
    r"(^|_)(jailbreak|injection|attack|harmful|malicious|unsafe)(_[a-z]+)?_(refus|reject|deni)": 1,
    r"(^|_)needs?_(work|fix|improve|review|human|edit|revis|rewrit|correct|attention|follow|escalat|clarif|help|agent)": -1,
    r"(^|_)(review|escalation|human|agent|rework|fix|follow_?up|revision|edits?)_(needed|required)": -1}  # fmt: skip


def plain_word(text: str) -> str:
    """A word of feedback as SAID spells it: small letters, one _ for spaces and hyphens. So does the SQL of graded_feedback."""
    return re.sub(r"[\s_-]+", "_", text.strip().lower())


def thumb_of(text: str | None) -> float | None:
    """1 or -1 of a word: thumbs, or true and false of what the name says. None for other words."""
    kind, side = SAID.get(plain_word(text or ""), ("nothing", 0))
    return float(side) if kind != "nothing" else None


def label_of(text: str | None) -> str | None:
    """A KTO label as true or false, or the whole number that is written; None for what is no label, such as a topic."""
    word = plain_word(text or "")
    if number := re.fullmatch(r"(\d{1,4})(\.0*)?", word):
        return number[1]
    said = None if word in _GRADES else thumb_of(word)
    return None if said is None else "true" if said > 0 else "false"


@lru_cache(maxsize=4096)
def good_end(name: str) -> int:
    """1 where more of what the name says is better or it says nothing (user_score), -1 where less is, 0 if it does not tell."""
    end = _end_of(_words_of(name))
    return 1 if end is None else end


def is_known(name: str) -> bool:
    """Whether a word of the name tells which end is good, or all of them are those of a rating."""
    words = _words_of(name)
    return _end_of(words) is not None or all(map(_RATING.match, words))


def _words_of(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def _end_of(words: list[str]) -> int | None:
    """None of a name without a known word."""
    phrase = "_".join(words)
    for pattern, end in _PHRASES.items():
        if re.search(pattern, phrase):
            return end
    side = _last_side(words)
    if any(_MEASURE.match(word) for word in words) or "time" in (words[:1] + words[-1:]):
        return side if side == -1 else 0
    if side is None and any(map(_COUNT.match, words)):
        return 0
    if side == -1 and _is_undone(words):
        side = 1
    elif any(re.match("block(s|ed)?$", word) for word in words):
        side = -1
    for word in filter(_NOT.match, words):
        side = -side if side else -1 if word.startswith("lack") else 0
    return side


def _last_side(words: list[str]) -> int | None:
    """The side of the last word that has one, such as an issue of quality or the handling of errors."""
    side: int | None = None
    kind: re.Pattern[str] | None = None
    for word in words:
        if _REMEDY.match(word):
            side = 1
        elif bad := next((each for each in (_LOW, _BAD, _FAULT) if each.match(word)), None):
            side, kind = -1, bad
        elif _GOOD.match(word):
            if side == -1 and kind is _BAD:
                side = -1 if word.startswith("success") else 0  # the quality of a hallucination: nobody knows
            elif side is None or (side == -1 and kind is _FAULT and not word.startswith("success")):
                side = 1
        elif _UNSURE.match(word) and side == -1:
            side = 0
    return side


def _is_undone(words: list[str]) -> bool:
    for place, word in enumerate(words):
        before, after = words[max(place - 1, 0) : place], words[place + 1 : place + 2]
        beside = {"free": before, "zero": after}.get(word, ())
        if _UNDONE.match(word) or (word == "free" and after in (["of"], ["from"])):
            return True
        if any(kind.match(each) for kind in (_BAD, _FAULT, _GOOD) for each in beside):
            return True
    return False
