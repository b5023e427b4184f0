"""`python -m unskew`, the same as `unskew`."""

import sys

from unskew.cli import main

sys.exit(main())
