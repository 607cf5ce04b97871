-- Number of rows whose MinHash signature was computed with other settings and cannot be compared.
-- needs: cleaned_rows
-- parameters: $stamp
-- makes: rows (count_star)
select count(*) from cleaned_rows where len(signature) > 0 and signature[1] <> $stamp
