-- Drops short answers that begin with a refusal. Off by default: a refusal may be worth learning.
-- needs: refused_in_words(), texts
-- parameters: $drop_refused_in_words
-- makes: temp table failed_refusal (interaction_id, place, rule, detail)
create or replace temp table failed_refusal as
select interaction_id, 6 as place, 'refused_in_words' as rule, cast(null as varchar) as detail
from texts
where $drop_refused_in_words and refused_in_words(answer)
