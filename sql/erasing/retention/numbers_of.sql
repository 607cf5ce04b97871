-- The numbers and booleans among the fields of a JSON object, as JSON text: parameters of sampling, without any text.
-- makes: macro numbers_of(params)
create or replace temp macro numbers_of(params) as (
    select nullif(cast(json_group_object(key, value) as varchar), '{}')
    from json_each(if(json_valid(params), params, '{}'))
    where type in ('BIGINT', 'UBIGINT', 'DOUBLE', 'BOOLEAN', 'HUGEINT')
)
