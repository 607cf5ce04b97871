-- A time in the form of an epoch (seconds, milli-, micro- or nanoseconds) or of ISO 8601 as a timestamp. Null outside the years 2000
-- to 2100.
-- makes: macro plain_moment(written)
create or replace temp macro plain_moment(written) as
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
