-- The days of the chart of acceptance that the table has, as it was last written.
-- needs: drift
-- parameters: $release
-- makes: rows (dt, value, bound, settings)
select dt, value, bound, settings from drift where release = $release and test = 'acceptance' order by dt
