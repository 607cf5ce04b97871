-- Whether a text of a message is what a logger wrote in place of it: the words of LiteLLM, LM Studio, OpenInference, Sentry, Datadog,
-- Logfire, Langfuse and others, alone, or the mark of a cut in a text that does not quote it.
-- makes: macro placeholder_in(said)
create or replace temp macro placeholder_in(said) as
coalesce(regexp_matches(
    -- the input of a call may be such a word
    if(regexp_matches(said, '"(input|args)"\s*:\s*\{'), regexp_replace(said, '"(input|args)"\s*:\s*\{[^{}]*\}', '', 'g'), said),
    '(?i)"(content|text)"\s*:\s*"\s*(redacted-by-litellm|default-message-value|\W{0,3}redacted\W{0,3}|\*{3,}|'
    '[\[<({*_]{1,3}\s*((data|content|message|prompt|text|input|output|completion|fully|value)[ _-]?){0,2}'
    '(redacted|filtered|masked|scrubbed|hidden|removed|omitted|sanitized|not logged|withheld)(\s[^"]{0,80})?[\])>}*_]{1,3}'
    '|\[object object\]|\[this value has been dropped because [^"]*|(<|\\u003c)truncated due to size exceeding limit(>|\\u003e))\s*"'
    '|(:\s*"|[^`''"“‘(])\.\.\.\s?((<|\\u003c)truncated in logs|\(litellm_truncated )'
    '|(:\s*"|[^\s`''"(])((<|\\u003c)truncated in logs(>|\\u003e)|\(litellm_truncated \d+ chars\))[\s.]*"'
), false)
