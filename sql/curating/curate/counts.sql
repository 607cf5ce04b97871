-- Number of rows by rule.
-- needs: decided
-- makes: rows (rule, rows)
select rule, count(*) as rows from decided group by rule order by rule
