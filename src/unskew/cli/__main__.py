"""`python -m unskew.cli`, the same as `unskew`."""

import sys

from unskew.cli import main

sys.exit(main())
