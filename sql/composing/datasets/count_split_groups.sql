-- Number of users (or sessions without a user), and of sessions.
-- needs: split_groups
-- makes: rows (split_groups, sessions)
select count(distinct drawn) as split_groups, count(*) as sessions from split_groups
