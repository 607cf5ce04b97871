"""Model families: what each needs, and the table of them."""
