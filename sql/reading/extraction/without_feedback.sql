-- The feedback select of formats that have none.
-- needs: no_feedback
-- makes: rows (*)
select * from no_feedback
