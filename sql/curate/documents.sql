-- Each different message once: a conversation repeats its history in every row, a product its instructions.
create or replace temp table documents as
select identity, any_value(words_of(said)) as words
from messages
where role not in ('system', 'developer') and said <> ''
group by identity
