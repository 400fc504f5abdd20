"""Partition logs: file formats, appending, planning and reading. Knows no SQL, no network and no Spark."""
