-- Every step of some interactions through the pipeline.
-- needs: steps_of()
-- parameters: $ids
-- makes: rows (*)
select * from steps_of($ids)
