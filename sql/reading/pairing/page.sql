-- Some of the pairs. By their own number: until its transaction is committed, a table's rowid does not begin at 0.
select object, row, raw
from pairs
where number >= $begin and number < $begin + $number
order by pairs.number
