"""`python -m jjq` is the `jjq` command, where that is not on the path."""

import sys

from jjq_command import main

sys.exit(main())
