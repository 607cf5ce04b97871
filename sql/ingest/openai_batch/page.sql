-- Some of the pairs.
select object, row, raw
from pairs
where rowid >= $begin and rowid < $begin + $number
