select * from steps_of($ids)
