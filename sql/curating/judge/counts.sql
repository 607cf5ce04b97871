-- Number of texts to judge, and how many have scores.
-- needs: texts_to_judge
-- makes: rows (texts, known)
select count(*) as texts, count(*) filter (is_known) as known from texts_to_judge
