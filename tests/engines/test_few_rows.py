"""Products of a few rows: the values of torch.nn.Linear, whatever the shape, and only where they are meant to be."""

import pytest
import torch
from torch import nn

from eagle3lab.engines.few_rows import MOST_ROWS, FewRowsLinear, speed_up_few_rows


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(0,), (1,), (2,), (MOST_ROWS,), (MOST_ROWS + 1,), (1, 1), (1, 3), (2, 4), (3, 5)])
def test_values_are_those_of_a_float64_product(shape, bias):
    torch.manual_seed(0)
    layer = nn.Linear(24, 10, bias=bias)
    x = torch.randn(*shape, 24)
    wanted = x.double() @ layer.weight.double().t() + (layer.bias.double() if bias else 0)
    speed_up_few_rows(layer)
    found = layer(x)
    assert type(layer) is FewRowsLinear
    assert found.shape == (*shape, 10) and found.is_contiguous()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_rows_in_another_order_in_memory_give_the_same_values():
    layer = nn.Linear(24, 10, bias=False)
    x = torch.randn(24, 3).t()
    wanted = x.double() @ layer.weight.double().t()
    speed_up_few_rows(layer)
    torch.testing.assert_close(layer(x).double(), wanted, rtol=1e-5, atol=1e-5)


def test_only_plain_float32_layers_are_changed():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.bfloat16), Own(4, 4), nn.LayerNorm(4))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    speed_up_few_rows(model)
    assert [type(layer) for layer in model] == [FewRowsLinear, nn.Linear, Own, nn.LayerNorm]
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
