-- Users and sessions that are held out only because a split would be empty without them, as hashes.
-- needs: split_groups
-- makes: rows (split, drawn)
select distinct split, drawn from split_groups where lent order by split, drawn
