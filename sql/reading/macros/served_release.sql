-- The release in the fingerprint of its server (model_ops/serving/service.py); null for what other servers write.
-- makes: macro served_release(said)
create or replace temp macro served_release(said) as
nullif(regexp_extract(said, '^millrace-([0-9a-f]{12})-[0-9a-f]{64}$', 1), '')
