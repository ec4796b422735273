"""Which release of a serving engine reads a drafter beyond plain EAGLE-3, so that nothing is dropped without a word.

Read in the wheels themselves (`llama_eagle3.py` of SGLang 0.4.8 to 0.5.23 and of vLLM 0.10.0 to 0.33.0). An older
release ignores the key in config.json: it starts, serves, and accepts little or nothing.

    what                  key in config.json (top level)      tensors                   SGLang    vLLM
    fc_norm               fc_norm                             fc_norm.{a}.weight [G]    0.5.12    0.22.0
    norm_output           norm_output                         none                      0.5.12    0.22.0
    norm_before_fc        norm_before_fc                      input_norm.weight [A * G] 0.5.17    0.18.0
    norm_before_residual  norm_before_residual                none                      none      0.10.1
    aux layers            eagle_config.eagle_aux_...  (not 3) fc.weight [H, A * G]      0.5.12    0.22.0
    own embedding         target_hidden_size                  embed_tokens.weight [V,H] 0.4.8     0.21.0

`norm_output` means another thing in SpecForge (a norm before the head): names are never mapped by spelling.
"""

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from eagle3lab.draft.config import DraftConfig

FLAGS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")  # of DraftConfig and of config.json
SERVER = "sglang==0.5.23"  # the release of this project's server environment
FIRST_RELEASE = {
    "fc_norm": {"sglang": "0.5.12", "vllm": "0.22.0"},
    "norm_output": {"sglang": "0.5.12", "vllm": "0.22.0"},
    "norm_before_fc": {"sglang": "0.5.17", "vllm": "0.18.0"},
    "norm_before_residual": {"vllm": "0.10.1"},
    "a number of aux_layers other than 3": {"sglang": "0.5.12", "vllm": "0.22.0"},
    "an embedding of its own (hidden_size differs from the target's)": {"sglang": "0.4.8", "vllm": "0.21.0"},
}


class EngineError(ValueError):
    """A serving engine that would not run the drafter as it was trained."""


def special_needs(config: DraftConfig) -> list[str]:
    """What of FIRST_RELEASE the drafter uses."""
    used = (*(getattr(config, flag) for flag in FLAGS), len(config.aux_layers) != 3, config.owns_embedding)
    return [what for what, is_used in zip(FIRST_RELEASE, used, strict=True) if is_used]


def oldest_releases(config: DraftConfig) -> dict[str, str]:
    """The oldest release of each engine that runs the drafter as trained; empty for plain EAGLE-3."""
    releases: dict[str, str] = {}
    for what in special_needs(config):
        for engine, version in FIRST_RELEASE[what].items():
            releases[engine] = str(max(Version(version), Version(releases.get(engine, "0"))))
    return releases


def require_engine(config: DraftConfig, engine: str) -> None:
    """`engine` is a release such as "sglang==0.5.23" or "vllm==0.33.0".

    Raises EngineError when it does not read what the drafter needs, naming all of it and what does, and ValueError
    for anything that does not name one release of SGLang or vLLM.
    """
    try:
        wanted = Requirement(engine)
        [exact] = wanted.specifier
        version = Version(exact.version)
        known = exact.operator == "==" and wanted.name in ("sglang", "vllm")
    except (InvalidRequirement, ValueError):
        known = False
    if not known:
        raise ValueError(f"engine={engine!r} must name one release, such as {SERVER!r} or 'vllm==0.33.0'")
    unread = {}
    for what in special_needs(config):
        first = FIRST_RELEASE[what].get(wanted.name)
        if first is None:
            raise EngineError(
                f"the drafter has {what}, which no release of {wanted.name} knows; {engine} would ignore it and accept "
                f"little or nothing. Serve it with {' or '.join(FIRST_RELEASE[what])}, or train without it"
            )
        if version < Version(first):
            unread[what] = f"{what}, which {wanted.name} reads from {first} on"
    if unread:
        switches = ", ".join(f"{what}: false" for what in unread if what in FLAGS)
        raise EngineError(
            f"the drafter has {' and '.join(unread.values())}; {engine} would ignore it and accept little or nothing. "
            f"Serve with a newer release, or train without it{switches and f' ({switches})'}"
        )
