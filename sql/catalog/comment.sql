-- A sentence about a relation, a macro or a column. Comments take no bound parameters: the pieces are quoted by sql_literal.
comment on {kind} {name} is {text}
