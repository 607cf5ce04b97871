select count(*) filter (feedback is not null) as rows, count(*) filter (feedback < 0) as below_zero from cleaned_interactions
