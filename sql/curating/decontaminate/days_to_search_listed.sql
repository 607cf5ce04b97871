select dt from days_to_search order by dt
