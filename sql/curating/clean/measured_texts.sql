-- What is measured outside SQL: near-duplicates by the new turn and the answer, the rest by what the answer says.
select interaction_id, new_turn, answer, spoken from texts
