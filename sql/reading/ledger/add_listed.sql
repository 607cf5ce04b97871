insert into seen
select source, uri
from listed
