-- Whether a text of a message is what a logger wrote in place of it: the words of LiteLLM, LM Studio, OpenInference, Sentry, Datadog,
-- Logfire and others, alone, or the mark of a cut inside a text.
-- makes: macro placeholder_in(said)
create or replace temp macro placeholder_in(said) as
coalesce(regexp_matches(
    said,
    '(?i)"(content|text)"\s*:\s*"\s*(redacted-by-litellm|default-message-value|\W{0,3}redacted\W{0,3}|\*{3,}|'
    '[\[<({*_]{1,3}\s*((data|content|message|prompt|text|input|output|completion|fully|value)[ _-]?){0,2}'
    '(redacted|filtered|masked|scrubbed|hidden|removed|omitted|sanitized|not logged|withheld)(\s[^"]{0,80})?[\])>}*_]{1,3})\s*"'
    '|(<|\\u003c)truncated in logs|\(litellm_truncated '
), false)
