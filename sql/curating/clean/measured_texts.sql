-- Texts that are measured outside SQL: near duplicates by new turn and answer, everything else by the answer's text.
-- needs: texts
-- makes: rows (interaction_id, new_turn, answer, answer_text)
select interaction_id, new_turn, answer, answer_text from texts
