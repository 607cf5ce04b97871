-- The numbers and booleans among the fields of a JSON object, as JSON text: parameters of sampling, without any text, and what of the
-- prompt is elsewhere: an erasure finds rows that go on from an erased response by it.
-- makes: macro numbers_of(params)
create or replace temp macro numbers_of(params) as (
    select nullif(cast(json_group_object(key, value) as varchar), '{}')
    from json_each(if(json_valid(params), params, '{}'))
    where key = 'context' or type in ('BIGINT', 'UBIGINT', 'DOUBLE', 'BOOLEAN', 'HUGEINT')
)
