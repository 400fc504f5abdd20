"""What tests of many kinds ask of a store."""

import os

from jjq.store import Store
from jjq.verify import VerifyReport, verify


def assert_whole(store: Store | str | os.PathLike[str]) -> VerifyReport:
    """That `verify` finds nothing wrong: the last line of a test that wrote to a store. A path or an open store.

    Files that nobody names are allowed, as a killed process leaves some.
    """
    report = verify(store)
    assert report.ok, str(report)
    return report
