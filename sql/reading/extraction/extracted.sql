-- Interactions as a format's select reads them; columns that it does not name are null. A view, so that the text of a part is
-- scanned once and never copied.
-- needs: <rows>, no_interactions
-- placeholders: rows
-- makes: temp view extracted (*)
create or replace temp view extracted as
select * from no_interactions
union all by name
({rows})
