-- Moves what strata lend to its split.
-- needs: split_groups, stratum_loans
-- makes: update of split_groups (split, lent)
update split_groups
set split = stratum_loans.split, lent = true
from stratum_loans
where split_groups.drawn = stratum_loans.drawn
