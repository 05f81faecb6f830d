from tests.bundle.conftest import *  # noqa: F403 - the same bundle
