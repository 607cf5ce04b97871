-- Decisions of ingest. Other stages have details that are not JSON.
-- needs: decisions
-- makes: temp table ingest_decisions (*)
create temp table ingest_decisions as
select * from decisions where stage = 'ingest'
