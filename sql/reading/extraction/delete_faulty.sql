-- The rows that have gone to quarantine.
delete from staged where error_code is not null
