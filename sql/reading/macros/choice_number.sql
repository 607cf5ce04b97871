-- The number of a choice: what it says itself, unless two say the same; then its place.
create or replace temp macro choice_number(choices, part) as
case
    when len(choices) > 1 and len(list_distinct(list_transform(choices, lambda each: each.index))) < len(choices) then part
    else coalesce(choices[part + 1].index, part)
end
