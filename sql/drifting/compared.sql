-- Windows that were compared with this reference, settings and code, and the files that they had then.
-- needs: drift
-- parameters: $reference_end, $reference_start, $release, $settings
-- makes: rows (dt, window_days, files)
select dt, window_days, max(files) as files
from drift
where release = $release and settings = $settings and test <> 'acceptance'
  and reference_start = $reference_start and reference_end = $reference_end
group by dt, window_days
