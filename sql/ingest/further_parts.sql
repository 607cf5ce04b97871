-- Choices and turns beyond the first of their record, by object.
select object, count(*)
from staged
where part > 0
group by object
