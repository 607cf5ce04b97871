-- Of the lines of a part, those that are JSON objects.
insert into records
select object, row, raw
from lines
where json_valid(raw) and json_type(raw) = 'OBJECT'
