-- Spans without content and without log records: they are no interactions.
-- needs: joined_spans, ranked_sides, skipped
-- parameters: $workload
-- makes: rows into skipped (object, row, workload, rule)
insert into skipped
select object, row, $workload as workload, 'otlp_call_without_content' as rule
from ranked_sides
anti join joined_spans using (object, row, place)
where side = 'span'
