"""Property tests of this folder run the same inputs every time; ``K3CTL_FRESH=1`` tries fresh ones."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same inputs", derandomize=not os.environ.get("K3CTL_FRESH"))
settings.load_profile("same inputs")
