-- Whether a whole text of a message is a structure that its producer wrote as text: a body or a list of messages, LangChain's objects,
-- or Python's own notation of them.
-- makes: macro unread_in(said)
create or replace temp macro unread_in(said) as
coalesce(regexp_matches(
    said,
    '"(content|text)"\s*:\s*"(\\[nt]|\s|\\")*(\[\s*)*(\{\s*\\+"lc\\+"\s*:\s*1|\{\s*(\\+"|'')(messages|choices|contents|candidates)(\\+"|'')\s*:\s*\['
    '|\[\s*\{\s*(\\+"|'')role(\\+"|'')\s*:\s*(\\+"|'')(user|system|assistant|developer)\b'
    '|(Human|AI|System|ChatCompletion|Chat)Message(Chunk)?\(|ChatCompletion\(|content=(''|\\")[^"]*(additional|response)_)'
), false)
