"""Fixtures of the draft room."""

import pytest
import torch

from tests.draft.jobs import make_job
from tests.draft.samples import H, V, make_draft, make_row


@pytest.fixture
def draft():
    return make_draft()


@pytest.fixture
def rows():
    """One turn, two turns, an answer that starts at once, and a row too short to train later steps."""
    return [
        make_row(1, 9, [(3, 9)]),
        make_row(2, 14, [(3, 6), (8, 14)]),
        make_row(3, 7, [(1, 7)]),
        make_row(4, 5, [(3, 5)]),
    ]


@pytest.fixture
def head():
    return torch.randn(V, H, generator=torch.Generator().manual_seed(9))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A tiny training job, see jobs.py."""
    return make_job(tmp_path_factory.mktemp("job"))
