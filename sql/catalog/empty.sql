-- View of a table that has no commit yet: the columns, no rows.
-- placeholders: columns, view
-- makes: view <view> (*)
create view {view} as
select {columns} where false
