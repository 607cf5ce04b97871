"""How rows change: one file for each table, dataset or step, a section for each statement (resources/lake/sql_files.py)."""
