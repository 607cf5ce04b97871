-- Whether an answer is short and begins with a refusal. A narrow English pattern.
-- makes: macro refused_in_words(answer)
create or replace temp macro refused_in_words(answer) as
    length(answer) < 400 and regexp_matches(
        left(answer, 160),
        '^(i''?’?m (very |really |so )?sorry|sorry|i (sincerely )?apologi[sz]e|unfortunately|as an ai( language)?( model| assistant)?)?'
        || '[,.:;!]? ?(but |that |however,? )?i( ?''m|’m| am)? ?(can''?’?t|cannot|can not|not able to|unable to|won''?’?t( be able to)?)'
        || ' (be able to )?(help( you)?( with|[.,;]| *$)|assist( you)?( with|[.,;]| *$)|(comply|fulfill|fulfil|provide|answer|respond|discuss|engage|support|do (that|this))\b)',
        'i'
    )
