-- A logged time as a timestamp: epoch seconds, milli-, micro- or nanoseconds, or ISO 8601. Null outside the years 2000 to 2100.
-- makes: macro moment(written)
create or replace temp macro moment(written) as
case
    when try_cast(written as double) between 946684800 and 4102444800
        then make_timestamptz(cast(try_cast(written as double) * 1e6 as bigint))
    when try_cast(written as double) between 946684800e3 and 4102444800e3
        then make_timestamptz(cast(try_cast(written as double) * 1e3 as bigint))
    when try_cast(written as double) between 946684800e6 and 4102444800e6
        then make_timestamptz(cast(try_cast(written as double) as bigint))
    when try_cast(written as double) between 946684800e9 and 4102444800e9
        then make_timestamptz(cast(try_cast(written as double) / 1e3 as bigint))
    when try_cast(written as timestamptz) between timestamptz '2000-01-01' and timestamptz '2100-01-01'
        then try_cast(written as timestamptz)
end
