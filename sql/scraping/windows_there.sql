-- Windows of an endpoint that the table has, from a time on.
-- needs: serving_metrics
-- parameters: $endpoint, $since
-- makes: rows (endpoint, release, window_start)
select endpoint, release, window_start from serving_metrics where endpoint = $endpoint and window_start >= $since
