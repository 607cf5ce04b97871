-- Drops answers in a language that is not allowed. Answers whose language is unknown are kept.
-- needs: measured
-- parameters: $allow
-- makes: temp table failed_language (interaction_id, place, rule, detail)
create or replace temp table failed_language as
select
    interaction_id, 3 as place, 'language' as rule,
    printf('%s, confidence %.2f', language, language_confidence) as detail
from measured
where len($allow::varchar[]) > 0 and language is not null and not list_contains($allow::varchar[], language)
