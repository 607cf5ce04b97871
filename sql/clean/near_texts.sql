select interaction_id, near_text from texts
