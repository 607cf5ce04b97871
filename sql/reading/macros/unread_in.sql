-- Whether a whole text of a message is a structure that its producer wrote as text: a body or a list of messages, LangChain's objects,
-- or Python's own notation of them. lists: keys of a body's lists of objects.
-- makes: macro unread_in(said, lists)
create or replace temp macro unread_in(said, lists) as
coalesce(regexp_matches(
    said,
    '"(content|text)"\s*:\s*"(\\[nt]|\s|\\")*(\[\s*)*(\{\s*\\+"lc\\+"\s*:\s*1|\{\s*(\\+"|'')(' || lists || ')(\\+"|'')\s*:\s*\[\s*\{'
    '|\{\s*(\\+"|'')candidates(\\+"|'')\s*:\s*\[\s*\{\s*(\\+"|'')(content|index|finish|safety|citation)'
    '|\[\s*\{\s*(\\+"|'')role(\\+"|'')\s*:\s*(\\+"|'')(user|system|assistant|developer)\b'
    '|(Human|AI|System|ChatCompletion|Chat)Message(Chunk)?\(|ChatCompletion\(|content=(''|\\")[^"]*(additional|response)_)'
), false)
