-- Feedback that failed a check. Feedback that came along with an interaction's record leaves that record as it is.
insert into quarantined by name
select
    checked_feedback.object,
    checked_feedback.row,
    checked_feedback.error_code,
    checked_feedback.message,
    encode(lines.raw)[:4096] as raw
from checked_feedback
inner join lines using (object, row)
where checked_feedback.error_code is not null and not checked_feedback.extra and not checked_feedback.copied
