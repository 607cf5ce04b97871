select interaction_id from wanted where not is_known order by draw
