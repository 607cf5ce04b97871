select * from why($identifier)
