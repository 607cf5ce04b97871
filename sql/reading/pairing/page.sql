-- One page of the pairs, by their own number: a table's rowid does not begin at 0 until its transaction is committed.
-- needs: pairs
-- parameters: $begin, $number
-- makes: rows (object, row, raw)
select object, row, raw
from pairs
where number >= $begin and number < $begin + $number
order by pairs.number
