select count(*) as wanted, count(*) filter (is_known) as known from wanted
