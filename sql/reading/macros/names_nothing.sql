-- Whether an id is one that many requests have: Ollama draws chatcmpl-0 to chatcmpl-998, and others log a constant in place of none.
-- makes: macro names_nothing(id)
create or replace temp macro names_nothing(id) as
regexp_full_match(id, '(?i)(chat)?cmpl-\d{1,3}|0|-|none|null|nil|undefined|unknown|n/a|[0-]{36}')
