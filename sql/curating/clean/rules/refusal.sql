-- Short answers that begin by saying that they cannot help. A narrow pattern, in English, and off unless asked for: a refusal may
-- be what one wants taught.
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
