-- A table that nothing was committed to yet: the right columns, no rows.
create view {view} as
select {columns} where false
