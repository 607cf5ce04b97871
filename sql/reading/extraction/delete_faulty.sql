-- Deletes rows that have gone to quarantine.
-- needs: staged
-- makes: deletion from staged
delete from staged where error_code is not null
