"""The good world, a copy to plant faults in, and what the doctor says of the good one."""

import pytest

from eagle3lab.analysis.doctor import run_doctor
from tests.analysis.doctor.world import build_world
from tests.data.conftest import _make_tokenizer


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return build_world(tmp_path_factory.mktemp("world") / "good", _make_tokenizer())


@pytest.fixture
def world(good, tmp_path):
    return good.copy(tmp_path / "world")


@pytest.fixture(scope="module")
def tokenizer():
    return _make_tokenizer()


@pytest.fixture(scope="module")
def passed(good):
    return run_doctor(good.subject(recapture=True))
