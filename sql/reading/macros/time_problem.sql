-- The reason why a logged time cannot be used, with the time; null for a time that can, and for none: a text without a time, and
-- the zero of epochs, Go and MySQL.
-- needs: moment(), moment_of()
-- makes: macro time_problem(written)
create or replace temp macro time_problem(written) as
case
    when written is null or moment(written) is not null or regexp_full_match(
        trim(coalesce(moment_of(written), written), ' "' || chr(9) || chr(10) || chr(13)),
        '(?i)|[-+]?0*(\.0*)?|-|-1|-62135596800|null|none|nan|nat|nil|n/a|undefined|unknown|\{\}|\[\]|(0000|0001|1970-01-01).*'
    ) then null
    when try_cast(written as double) is not null or try_cast(coalesce(moment_of(written), written) as timestamptz) is not null
        then 'the time is not one between the years 2000 and 2100: ' || left(written, 60)
    else 'the format of the time is not known: ' || left(written, 60)
end
