-- Gives records whose id does not identify them an id of their own.
-- needs: loose_ids, staged
-- makes: update of staged (interaction_id)
update staged
set interaction_id = own_id
from loose_ids
where staged.object = loose_ids.object and staged.row = loose_ids.row and staged.part = loose_ids.part
