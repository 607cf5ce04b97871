select count(*) from entrants
