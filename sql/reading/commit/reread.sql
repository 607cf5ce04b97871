-- Objects of the batch whose earlier rows are replaced.
-- needs: batch, read_before
-- makes: temp table reread (uri)
create or replace temp table reread as
select uri from batch
semi join read_before using (uri)
