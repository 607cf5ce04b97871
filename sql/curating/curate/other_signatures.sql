-- How many rows were signed with other settings: they cannot be compared with the rest.
select count(*) from cleaned_interactions where len(signature) > 0 and signature[1] <> $stamp
