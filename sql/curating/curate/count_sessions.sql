select count(*) from sessions
