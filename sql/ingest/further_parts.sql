-- Choices and turns beyond the first of their record, by object.
select object, count(*)
from extracted
where part > 0
group by object
