-- Number of curated rows by rule.
-- needs: decisions
-- makes: rows (rule, rows)
select rule, count(*)::bigint as rows from decisions group by rule order by rule
