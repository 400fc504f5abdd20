"""A message log that is also a table."""
