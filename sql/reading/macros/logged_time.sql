-- Of the times that a record names, the first that is understood; else the first that says anything.
-- needs: moment()
-- makes: macro logged_time(one, two, three := null, four := null, five := null)
create or replace temp macro logged_time(one, two, three := null, four := null, five := null) as
coalesce(
    case when moment(one) is not null then one end, case when moment(two) is not null then two end,
    case when moment(three) is not null then three end, case when moment(four) is not null then four end,
    case when moment(five) is not null then five end,
    nullif(one, ''), nullif(two, ''), nullif(three, ''), nullif(four, ''), nullif(five, '')
)
