"""The drafter that the analysis room's tests share."""

import pytest

from tests.analysis.overfit import make_overfit


@pytest.fixture(scope="session")
def overfit(tmp_path_factory):
    return make_overfit(tmp_path_factory.mktemp("overfit"))
