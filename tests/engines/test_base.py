import pytest

from eagle3lab.draft.aux_layers import CollidingLayersError, check_aux_layers, default_aux_layers
from eagle3lab.engines.base import (
    ContextError,
    Request,
    check_request,
)


@pytest.mark.parametrize(("layers", "expected"), [(61, [2, 30, 58]), (30, [2, 15, 27]), (7, [2, 3, 4])])
def test_default_aux_layers_are_those_of_the_field(layers, expected):
    assert default_aux_layers(layers) == expected


@pytest.mark.parametrize("layers", [1, 3, 5, 6])
def test_colliding_defaults_are_refused(layers):
    with pytest.raises(CollidingLayersError, match=f"{layers} layers.*aux_layers yourself"):
        default_aux_layers(layers)


def test_explicit_layers_must_exist_and_differ():
    assert check_aux_layers([0, 3, 7], 8) == [0, 3, 7]
    with pytest.raises(ValueError, match="0..7"):
        check_aux_layers([1, 8], 8)  # hs[L] is the post-norm state, no layer's input
    with pytest.raises(CollidingLayersError, match="different"):
        check_aux_layers([2, 2, 3], 8)


def test_requests_that_cannot_run_are_named():
    check_request(Request("fits", [1] * 100, 28), 64, 128)
    with pytest.raises(ContextError, match="'long'.*100 prompt tokens.*129 positions.*128"):
        check_request(Request("long", [1] * 100, 29), 64, 128)
    with pytest.raises(ValueError, match="'empty' has no tokens"):
        check_request(Request("empty", [], 5), 64, 128)
    with pytest.raises(ValueError, match="'foreign'.*64 outside.*vocabulary of 64"):
        check_request(Request("foreign", [3, 64], 5), 64, 128)
    with pytest.raises(ValueError, match="'none' has max_tokens=0"):
        check_request(Request("none", [3], 0), 64, 128)
    with pytest.raises(ValueError, match="'cold' has temperature=-1"):
        check_request(Request("cold", [3], 1, temperature=-1), 64, 128)
