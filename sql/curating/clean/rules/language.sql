-- Answers in a language that was not asked for. What cannot be told stays.
create or replace temp table failed_language as
select
    interaction_id, 3 as place, 'language' as rule,
    printf('%s, confidence %.2f', language, language_confidence) as detail
from measured
where len($allow::varchar[]) > 0 and language is not null and not list_contains($allow::varchar[], language)
