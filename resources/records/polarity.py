"""Which end of a score is good, by its name, and what the words of feedback say: one table for every format.

good_end("user_score")           # 1: more is better
good_end("hallucination")        # -1: less is better; "no_hallucination" is 1 again
good_end("toxicity_check")       # 0: the name does not tell
SAID["thumbs_down"]              # ("side", -1), whatever the name;  SAID["true"]: ("truth", 1), of what the name says
"""

from __future__ import annotations

import re
from functools import lru_cache

SAID: dict[str, tuple[str, int]] = {
    word: (kind, side)
    for kind, side, words in (
        ("side", 1, "up thumbs_up thumb_up thumbsup upvote upvoted like liked love loved good positive 👍 :thumbsup: :+1:"),
        ("side", 1, "correct accurate helpful useful factual faithful grounded relevant safe non_toxic nontoxic pass passed"),
        ("side", 1, "accept accepted approved desirable desired chosen preferred satisfied resolved"),
        ("side", -1, "down thumbs_down thumb_down thumbsdown downvote downvoted dislike disliked bad negative 👎 :thumbsdown:"),
        ("side", -1, "incorrect wrong inaccurate unhelpful not_helpful useless hallucinated unfaithful ungrounded irrelevant"),
        (
            "side",
            -1,
            "unrelated unsafe toxic harmful fail failed reject rejected undesirable undesired dissatisfied unresolved",
        ),
        ("truth", 1, "true yes detected"),
        ("truth", -1, "false no not_detected"),
        (
            "nothing",
            0,
            "none null nil nan removed cleared retracted deleted unset neutral undone withdrawn revoked reset no_vote",
        ),
    )
    for word in words.split()
}
"""A word of feedback, spelled by `plain_word`: which side it is on; whether what the name says is so; or that a vote is taken
back."""

_BAD = re.compile(
    r"hallucinat|toxi|harm(?!less|on)|bias|bad(ly|ness)?$|wrong|wors[et]|negativ|(thumbs?)?down(vote)?[sd]?$|hate|hatred|offens|abus|insult"
    r"|obscen|profan|vulgar|threat|violen|danger|malicious|sexual|nsfw$|fabricat|confabul|contradict|stereotyp|racis|discriminat"
    r"|jailbreak|frustrat|annoy|anger|angry|disappoint|complain|useless|pointless|nonsens|gibberish|garbage|plagiar|spam|perplex"
    r"|rude|poor|repetit|verbos|redundan|sycophan|evas|decept|manipulat|unsaf|inferior"
    r"|(un|in)(help|accura|correct|complet|coheren|consist|appropriat|safe|secure|suffici|effect|ground|faith|fact|fair|true|clear|resolv"
    r"|answer|support|verif|certain|natural|profession|satisf|happy|relat|accept|usab|desir|like|trust|want|friend|ethic|reliab|read)"
    r"|(im|ir|il)(polite|proper|plausib|precis|relev|respons|rational|logic|legal)"
    r"|dis(satisf|lik|trust|agree|honest|respect|approv)|mis(lead|inform|interpret|under|repres|match|us)"
)
"""Beginnings of words for what is bad whatever is said of it."""
_FAULT = re.compile(
    r"err(or|ors|oneous)?$|fail|refus|den(y|ied|ial)|reject|escalat|handoff|report(s|ed)?$|flag(s|ged)?$|issue|problem|bug(s|gy)?$|defect|fault|mistake"
    r"|risk|severity|distance|loss|leak|pii$|violat|inject|attack|crash|timeout|exception|broken|regenerat|retr(y|ied|ies)$|abandon|churn"
    r"|miss(ed|es|ing)?$|invalid|truncat|confus|outdated|lie[sd]?$|penalty|(wer|cer|mae|mse|rmse|nll|ppl)$"
)
"""Beginnings of words for what may be dealt with well: an error is bad, and error handling is not."""
_GOOD = re.compile(
    r"good|great|(in)?correct|accura|help|useful|relev|saf[ei]|faith|factual|ground|coheren|complet|quality|resol[uv]|solv|fix|handl|recover"
    r"|mitigat|redact|appropriat|ok$|positiv|(thumbs?)?up(vote)?[sd]?$|lik(e|ed|es)$|satisf|accept|success|adher|win$|pass(ed|es)?$"
    r"|(un|non|de)(bias|toxi|harm)"
)
_NOT = re.compile(r"(no|not|non|without|free|zero|anti|never|avoid.*|absen.*|lack|prevented)$")
_UNSURE = re.compile(r"(checks?|tests?|guard.*|filter.*|detector|moderation)$")
_MEASURE = re.compile(r"(latency|ttft|duration|costs?|price|tokens)$")
_PHRASES = {
    r"lower(_is)?_better|minimi[sz]e": -1,
    r"higher(_is)?_better|maximi[sz]e": 1,
    r"(^|_)(up_(or_)?(thumbs?_)?down|like_(or_)?dislike|good_(or_)?bad|positive_(or_)?negative|correct_(or_)?incorrect)": 1,
    r"false_(posi|nega)tive|(^|_)(off_(topic|brand|policy)|out_of_(scope|date|context)|too_[a-z]|needs_(work|fix|improve))": -1,
}


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
    # beside a prompt, positive and negative are rather a text's sentiment, which the answer names
    said = None if word in ("positive", "negative") else thumb_of(word)
    return None if said is None else "true" if said > 0 else "false"


@lru_cache(maxsize=4096)
def good_end(name: str) -> int:
    """1 where more of what the name says is better, -1 where less is, 0 where the name does not tell. A name without any such
    word is praise: user_score, csat."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    phrase = "_".join(words)
    for pattern, end in _PHRASES.items():
        if re.search(pattern, phrase):
            return end
    bad, fault, unsure, negated, measure = (any(map(kind.match, words)) for kind in (_BAD, _FAULT, _UNSURE, _NOT, _MEASURE))
    good = any(_GOOD.match(word) and not _BAD.match(word) for word in words)
    if negated:
        return 0 if good == (bad or fault) else -1 if good else 1  # 0: both or neither
    if bad:
        return 1 if words[-1] in ("pass", "passed", "passes") else 0 if good or unsure else -1
    if fault and not good:
        return 0 if unsure else -1
    return 1 if good or not measure else 0
