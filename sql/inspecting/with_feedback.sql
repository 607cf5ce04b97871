-- Number of sampled rows with feedback, and with feedback below zero.
-- needs: cleaned_interactions
-- makes: rows (rows, below_zero)
select count(*) filter (feedback is not null) as rows, count(*) filter (feedback < 0) as below_zero from cleaned_interactions
