-- Rows of each day that cleaning kept: those that the grouping pass reads.
-- needs: cleaned_interactions
-- makes: rows (dt, rows)
select dt, count(*) as rows from cleaned_interactions where status = 'ok' group by dt
