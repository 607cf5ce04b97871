-- Whether an id may be of many requests: it is short, or words, a template's placeholder, or words and a small number or a time.
-- makes: macro is_weak_id(id)
create or replace temp macro is_weak_id(id) as
length(id) < 8 or not regexp_matches(id, '\d') or regexp_matches(
    id, '(?i)[{}<>$%]|^([a-z]+[-_.:])*\d{1,13}$|(^|[^a-z])(mock|fake|dummy|test|example|sample|string|default|placeholder)([^a-z]|$)'
)
