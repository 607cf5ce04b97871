-- Days to search, in order.
-- needs: days_to_search
-- makes: rows (dt)
select dt from days_to_search order by dt
