"""Numbers of a training outside their range are refused before a kernel starts."""

import math

import pytest

from eagle3lab.workbench.constraints import violations


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("clip_norm", [0.0, -1.0, math.nan, math.inf], [0.1, 100]),
        ("warmup_share", [-0.1, 1, 5.0, math.nan], [0, 0.99]),
        ("final_lr_share", [-1.0, 1.1, 10.0, math.nan], [0, 1]),
        ("lr", [0, -1e-3, 1.0, math.nan], [1e-6, 0.5]),
        ("head_lr", [0, -1e-3, 1.0, math.nan], [1e-6, 0.5]),
        ("weight_decay", [-0.1, math.nan, math.inf], [0, 0.1]),
        ("step_decay", [0, math.inf], [0.8, 1]),
        ("step_weights", [0, math.nan], [0.5]),
        ("lk_weight", [-0.1, 1.1, math.nan], [0, 1]),
        ("explode_factor", [1, math.nan], [3.0]),
        ("accumulate", [0], [1]),
        ("log_every", [0], [1]),
        ("heldout_rows", [-1], [0]),
    ],
)
def test_a_number_of_a_training(name, wrong, right):
    for value in wrong:
        (told,) = violations({name: value})
        assert told.startswith(f"{name} = {value!r}: must ")
    assert not [told for value in right for told in violations({name: value})]
    assert violations({name: None}) == []


def test_the_amounts_of_a_study_are_numbers_that_the_training_takes():
    for vary, wrong, right in (
        ("clip_norm", None, [0.5, 1]),
        ("warmup_share", [0.5, 1], [0.1, 0.5]),
        ("epochs", [0.5, 1], [1, 2]),
        ("explode_factor", [1, 2], [2, 3]),
    ):
        assert violations({"vary": vary, "amounts": right}) == []
        if wrong:
            (told,) = violations({"vary": vary, "amounts": wrong})
            assert "outside what the varied number may be" in told
