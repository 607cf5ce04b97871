-- Rows by day and rule, and what personal data was replaced.
select dt, rule, count(*) as rows from decisions group by dt, rule order by dt, rule
