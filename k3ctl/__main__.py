"""``python -m k3ctl``."""

import sys

from k3ctl.cli import main

sys.exit(main())
