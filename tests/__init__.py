"""The tests: unit, property, contract, crash, integration and spark, each a directory; bench is run by hand."""
