-- Objects of the sources of which only counts stay: feedback does not name its source, but its object.
-- needs: asked_sources, objects
-- makes: temp table asked_objects (workload, uri)
create or replace temp table asked_objects as
select distinct workload, uri
from objects
semi join asked_sources using (workload, source)
