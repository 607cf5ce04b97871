-- Objects of the batch whose earlier rows give way to those of this batch.
create or replace temp table reread as
select uri from batch
semi join earlier using (uri)
