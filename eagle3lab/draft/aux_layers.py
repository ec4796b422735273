"""Which target layers the drafter sees. Always hs indices: hs[k] is the input of decoder layer k.

Engines write the same layers differently; `sglang_layer_ids`, its inverse `layers_sglang_reads`, and
`layers_vllm_reads` are the one place that converts. SGLang's rule depends on the target's architecture (config.json
`architectures[0]`); the rules below were read in SGLang 0.5.15 to 0.5.23, method `set_eagle3_layers_to_capture` of each
model file. vLLM has one rule for all (0.32.0: ids are hs indices in every model file, and no family has a default of
its own).
"""

from collections.abc import Iterable

# deepseek_v2.py and what derives from it or hands over to it, and glm4_moe_lite.py
SGLANG_DEEPSEEK = frozenset({
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "MistralLarge3ForCausalLM",
    "GlmMoeDsaForCausalLM", "Glm4MoeLiteForCausalLM", "KimiK25ForConditionalGeneration",
})  # fmt: skip
SGLANG_GPT_OSS = frozenset({"GptOssForCausalLM"})
# minimax_m3_vl.py takes [2, L//2, L-3] for explicit ids, so that its default is one layer later than everybody's
SGLANG_LATE_DEFAULT = frozenset({"MiniMaxM3SparseForConditionalGeneration"})


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


def some_aux_layers(num_layers: int) -> list[int] | None:
    """Layers to name for a target: the default where its three are different, else three from L//4 to L-1; None for
    fewer than three layers."""
    try:
        return default_aux_layers(num_layers)
    except CollidingLayersError:
        return [num_layers // 4, num_layers // 2, num_layers - 1] if num_layers >= 3 else None


def check_aux_layers(aux_layers: Iterable[int], num_layers: int) -> list[int]:
    """The layers as a list. Raises ValueError for duplicates and for ids outside 0..L-1."""
    layers = [int(layer) for layer in aux_layers]
    if not layers or len({*layers}) < len(layers):
        raise CollidingLayersError(f"aux_layers={layers} must be different layers, at least one")
    if min(layers) < 0 or max(layers) >= num_layers:
        raise ValueError(f"aux_layers={layers} are hs indices and must lie in 0..{num_layers - 1}")
    return layers


def are_default(aux_layers: Iterable[int], num_layers: int, architecture: str = "") -> bool:
    """Are these the layers that SGLang and vLLM take for this target when a drafter's config names none."""
    return architecture not in SGLANG_LATE_DEFAULT and list(aux_layers) == [2, num_layers // 2, num_layers - 3]


def sglang_layer_ids(aux_layers: Iterable[int], architecture: str = "") -> list[int]:
    """Explicit ids that make SGLang capture these hs indices of a target of this architecture ("" is llama-like).

    llama-like and gpt_oss: id k is "after layer k", which is hs[k + 1]. deepseek: id k is hs[k], unless the first id
    is 1. Raises ValueError for layers that no list of ids expresses: not increasing (SGLang hands states over from
    the first layer to the last), and hs[1] first with deepseek.
    """
    layers = list(aux_layers)
    if layers != sorted(set(layers)):
        raise ValueError(f"aux_layers={layers} must increase: SGLang concatenates the states from low layer to high")
    if architecture not in SGLANG_DEEPSEEK:
        return [k - 1 for k in layers]
    if layers[0] == 1:
        raise ValueError(
            f"aux_layers={layers}: SGLang cannot be told to take hs[1] as the first layer of {architecture} (a list of "
            f"ids that begins with 1 means hs[2] there); begin with hs[0], hs[2] or a later layer"
        )
    return layers


def layers_sglang_reads(ids: Iterable[int] | None, num_layers: int, architecture: str = "") -> list[int]:
    """hs indices that SGLang captures for explicit ids (None: the config names none), in the order of its states."""
    explicit = [2, num_layers // 2, num_layers - 3] if ids is None else list(ids)
    as_they_are = (
        (ids is None and architecture not in SGLANG_LATE_DEFAULT)
        or (architecture in SGLANG_DEEPSEEK and explicit[:1] != [1])
        or (architecture in SGLANG_GPT_OSS and max(explicit) == num_layers)
    )
    return sorted(set(explicit if as_they_are else [k + 1 for k in explicit]))


def layers_vllm_reads(top: Iterable[int] | None, inside: Iterable[int] | None, num_layers: int) -> list[int]:
    """hs indices that vLLM captures, in the order of its states: the ids at the top of a drafter's config.json, else
    those inside eagle_config (as hs indices too, whatever engine they were written for), else its default. L is the
    last layer's output before the final norm."""
    ids = list(top or inside or ())
    return sorted(set(ids or [2, num_layers // 2, num_layers - 3]))
