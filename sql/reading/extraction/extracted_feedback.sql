-- Feedback as a format's select reads it; columns that it does not name are null. extra: the feedback came inside an
-- interaction's record and is not a record of its own.
-- Where the format's select has none, feedback beside what the format reads is about the answer, or all answers of a conversation.
-- needs: <rows>, beside, no_feedback, staged
-- placeholders: rows, turns
-- makes: temp view extracted_feedback (*)
create or replace temp view extracted_feedback as
with own as ({rows})

select * from no_feedback
union all by name
select * from own
union all by name
select
    beside.object, beside.row, staged.part, true as extra, staged.part as about_part,
    case when beside.named.feedback is not null then 'feedback' else beside.found.feedback_name end as name,
    coalesce(beside.named.feedback, beside.found.feedback) as written_value,
    'log' as source
from beside
inner join staged using (object, row)
where coalesce(beside.named.feedback, beside.found.feedback) is not null
    and staged.error_code is null
    and (staged.part = 0 or {turns})
    and not exists (select 1 from own where own.object = beside.object and own.row = beside.row)
