-- The index of a choice as logged, unless two choices have the same one; then its position.
-- makes: macro choice_number(choices, part)
create or replace temp macro choice_number(choices, part) as
case
    when len(choices) > 1 and len(list_distinct(list_transform(choices, lambda each: each.index))) < len(choices) then part
    else coalesce(choices[part + 1].index, part)
end
