-- The rows that stand for themselves after exact and near duplicates, best first.
select standing.place
from standing
left join near on near.place = standing.place
where standing.place = standing.stands_for and coalesce(near.best, standing.place) = standing.place
order by standing.place
