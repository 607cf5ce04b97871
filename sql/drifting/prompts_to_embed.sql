-- The beginnings of the last messages whose embeddings are compared: of a fixed share of the sessions, told by a hash of their
-- name, at most $most of each. Whether a session is one of them depends on itself alone, so its day does not matter.
-- needs: sessions, traffic
-- parameters: $characters, $most, $share
-- makes: rows (number, session, interaction_id, content_sha256, text)
select number, session, interaction_id, content_sha256, left(new_text, $characters) as text
from traffic
join sessions using (session)
where trim(new_text) <> '' and ('0x' || left(md5('embedded ' || session), 8))::bigint < $share * 4294967296
qualify row_number() over (partition by session order by md5(interaction_id), interaction_id) <= $most
order by number, interaction_id
