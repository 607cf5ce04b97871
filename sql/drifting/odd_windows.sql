-- Windows of the table serving_metrics that cannot be true: they end before they begin, or accepted more than was drafted.
-- needs: serving_metrics
-- makes: rows (backwards, too_many)
select
    count(*) filter (window_end <= window_start) as backwards,
    count(*) filter (window_end > window_start and accepted_tokens > draft_tokens) as too_many
from serving_metrics
