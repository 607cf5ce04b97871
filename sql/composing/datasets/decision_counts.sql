select rule, count(*)::bigint as rows from decisions group by rule order by rule
