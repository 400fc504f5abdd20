"""The catalog: what the files mean, in SQL. Knows nothing of the files' insides."""
