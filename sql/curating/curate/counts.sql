select rule, count(*) as rows from decided group by rule order by rule
