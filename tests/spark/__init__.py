"""A package, so that the tests' Spark ends with the last test of this directory."""
