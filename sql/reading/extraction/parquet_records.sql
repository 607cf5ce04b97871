-- Rows of a Parquet batch as JSON text. Null fields are left out; a text that is JSON of a list or object becomes that list or
-- object in the columns where a format expects one. $later, $first, $only: patterns of a null field after another field, before
-- others, alone. $structures: columns that may hold any structure. $conversations: columns that may hold messages only.
-- needs: batch
-- parameters: $conversations, $first, $later, $only, $structures
-- makes: rows (raw)
with written as (
    select cast(to_json(batch) as varchar) as raw from batch
),

filled as (
    select
        regexp_replace(regexp_replace(regexp_replace(raw, $later, '', 'g'), $first, '{', 'g'), $only, '{}', 'g') as raw
    from written
),

structured as (
    select
        list_reduce(
            list_concat([raw], $structures),
            lambda row, name: case
                when regexp_matches(row ->> concat('$."', name, '"'), '^\s*[\[{]')
                    and json_valid(row ->> concat('$."', name, '"'))
                    then cast(json_merge_patch(row, json_object(name, cast(row ->> concat('$."', name, '"') as json))) as varchar)
                else row
            end
        ) as raw
    from filled
)

select
    list_reduce(
        list_concat([raw], $conversations),
        lambda row, name: case
            when regexp_matches(row ->> concat('$."', name, '"'), '^\s*(\[\s*)?\{\s*"(role|content|from|value)"')
                and json_valid(row ->> concat('$."', name, '"'))
                then cast(json_merge_patch(row, json_object(name, cast(row ->> concat('$."', name, '"') as json))) as varchar)
            else row
        end
    ) as raw
from structured
