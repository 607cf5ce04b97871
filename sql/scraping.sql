-- name: windows_there
-- Windows of an endpoint that the table has, from a time on.
select endpoint, release, window_start from serving_metrics where endpoint = $endpoint and window_start >= $since
