-- The ingest's decisions: those of other stages have details that are no JSON.
create temp table ingest_decisions as
select * from decisions where stage = 'ingest'
