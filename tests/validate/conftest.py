"""A benchmark's bundle, to stand beside a validation's."""

from tests.bundle.conftest import make_bundle, make_result, planted_run

__all__ = ["make_bundle", "make_result", "planted_run"]
