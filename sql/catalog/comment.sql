-- Sets the comment of a relation, macro or column. Comments take no bound parameters: sql_literal quotes the values.
-- placeholders: kind, name, text
-- makes: comments
comment on {kind} {name} is {text}
