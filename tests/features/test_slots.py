import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.features.slots import spans_to_mask, teacher_slots


def test_spans_and_teachers_by_hand():
    # x_3, x_4 and x_6 were generated: their predictors are slots 2, 3 and 5
    mask = spans_to_mask([[3, 5], [6, 7]], 8)
    assert mask.tolist() == [False, False, False, True, True, False, True, False]
    assert teacher_slots(mask).tolist() == [2, 3, 5]


def test_a_row_that_starts_generated_has_no_teacher_for_its_first_token():
    assert teacher_slots(spans_to_mask([[0, 3]], 3)).tolist() == [0, 1]
    assert teacher_slots(spans_to_mask([], 3)).tolist() == []
    assert teacher_slots(spans_to_mask([[0, 1]], 1)).tolist() == []


@given(st.lists(st.booleans(), min_size=1, max_size=30))
@settings(deadline=None)
def test_teacher_slots_are_those_before_generated_tokens(mask):
    expected = [t for t in range(len(mask) - 1) if mask[t + 1]]
    assert teacher_slots(torch.tensor(mask)).tolist() == expected


@pytest.mark.parametrize("spans", [[[2, 2]], [[3, 1]], [[-1, 2]], [[2, 9]], [[1, 4], [3, 5]], [[4, 5], [1, 2]]])
def test_bad_spans_are_refused(spans):
    with pytest.raises(ValueError, match="loss span"):
        spans_to_mask(spans, 8)
