select count(*) from curated
