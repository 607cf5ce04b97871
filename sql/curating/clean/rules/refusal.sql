-- Drops short answers that begin with a refusal. A narrow English pattern, off by default: a refusal may be worth learning.
-- needs: texts
-- parameters: $drop_refused_in_words
-- makes: temp table failed_refusal (interaction_id, place, rule, detail)
create or replace temp table failed_refusal as
select interaction_id, 6 as place, 'refused_in_words' as rule, cast(null as varchar) as detail
from texts
where $drop_refused_in_words and length(answer) < 400 and regexp_matches(
    left(answer, 160),
    '^(i''?’?m (very |really |so )?sorry|sorry|i (sincerely )?apologi[sz]e|unfortunately|as an ai( language)?( model| assistant)?)?'
    || '[,.:;!]? ?(but |that |however,? )?i( ?''m|’m| am)? ?(can''?’?t|cannot|can not|not able to|unable to|won''?’?t( be able to)?)'
    || ' (be able to )?(help( you)?( with|[.,;]| *$)|assist( you)?( with|[.,;]| *$)|(comply|fulfill|fulfil|provide|answer|respond|discuss|engage|support|do (that|this))\b)',
    'i'
)
