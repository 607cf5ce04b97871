-- The digest of the target in the fingerprint of a release (model_ops/serving/service.py); null for what other servers write.
-- makes: macro served_digest(said)
create or replace temp macro served_digest(said) as
nullif(regexp_extract(said, '^millrace-[0-9a-f]{12}-([0-9a-f]{64})$', 1), '')
