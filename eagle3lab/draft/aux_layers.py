"""Which target layers the drafter sees. Always hs indices: hs[k] is the input of decoder layer k.

Engines write the same layers differently; `sglang_layer_ids` is the one place that converts.
"""

from collections.abc import Iterable


class CollidingLayersError(ValueError):
    """The default aux layers of a target are not three different layers."""


def default_aux_layers(num_layers: int) -> list[int]:
    """hs indices [2, L//2, L-3] of a target with L layers, the default of EAGLE-3, SGLang and vLLM.

    Raises CollidingLayersError when two of them are equal or out of order (few layers).
    """
    layers = [2, num_layers // 2, num_layers - 3]
    if not layers[0] < layers[1] < layers[2]:
        raise CollidingLayersError(
            f"a target with {num_layers} layers has the default aux layers {layers}, which are not "
            "three increasing layers; name aux_layers yourself, three different ids in "
            f"0..{num_layers - 1}"
        )
    return layers


def check_aux_layers(aux_layers: Iterable[int], num_layers: int) -> list[int]:
    """The layers as a list. Raises ValueError for duplicates and for ids outside 0..L-1."""
    layers = [int(layer) for layer in aux_layers]
    if not layers or len({*layers}) < len(layers):
        raise CollidingLayersError(f"aux_layers={layers} must be different layers, at least one")
    if min(layers) < 0 or max(layers) >= num_layers:
        raise ValueError(f"aux_layers={layers} are hs indices and must lie in 0..{num_layers - 1}")
    return layers


def are_default(aux_layers: Iterable[int], num_layers: int) -> bool:
    """Are these the layers that every engine takes when a drafter's config names none."""
    return list(aux_layers) == [2, num_layers // 2, num_layers - 3]


def sglang_layer_ids(aux_layers: Iterable[int]) -> list[int]:
    """The layers as SGLang reads explicit ids for most families: id k is "after layer k", which is hs[k + 1]."""
    return [k - 1 for k in aux_layers]
