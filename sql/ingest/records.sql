-- Records that one format has to turn into rows: raw is a valid JSON object.
create or replace temp table records (object integer, row bigint, raw varchar)
