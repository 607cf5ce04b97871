-- Feedback that failed a check. Feedback inside an interaction's record is left out: the record itself is fine.
-- needs: checked_feedback, lines, quarantined
-- makes: rows into quarantined (object, row, error_code, message, raw)
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
