-- The last message of each request of the vocabulary days.
-- needs: traffic
-- makes: rows (new_text)
select new_text from traffic where new_text is not null
