-- Objects whose earlier rows, if any, give way to those of this batch.
create or replace temp table reread as
select uri from batch
