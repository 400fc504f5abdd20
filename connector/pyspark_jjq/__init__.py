"""Spark data source `jjq`: reads and writes the topics of a store."""
