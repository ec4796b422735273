"""Sizes and switches of the drafter, and the default drafter of a target.

Shapes: A aux layers, H draft hidden, G target hidden, W draft vocabulary, V target vocabulary.
"""

from dataclasses import asdict, dataclass

FREE = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "fc_norm",
    "norm_output", "rms_norm_eps", "rope_theta", "max_position_embeddings",
)  # fmt: skip

FOREIGN = ("norm_before_residual", "norm_before_fc", "rope_llama3")  # of drafters that others trained


@dataclass(frozen=True)
class DraftConfig:
    """Sizes of the drafter. `aux_layers` are hs indices (hs[k] = input of target layer k).

    fc_norm and norm_output are EAGLE-3.1: an RMSNorm on each aux state before `fc`, and the output after the final norm
    (instead of before it) as what the next step is fed. A new drafter has both (`for_target`; dev/recipes.ipynb says
    why); a config.json that names neither means neither. norm_before_residual and norm_before_fc are of drafters that
    speculators trained: the residual taken after `hidden_norm`, and one RMSNorm over the aux states side by side before
    `fc`. rope_llama3 is Llama 3's scaling of RoPE, its numbers as `rope.LLAMA3` names them, of drafters that took over
    their target's. `for_target` does not offer these three. Which engines know what: `engine_support.py`.
    A drafter whose width differs from the target's carries an embedding of its own (`owns_embedding`).
    target_architecture: `architectures[0]` of the target's config.json; it decides how SGLang writes aux layers
    (`aux_layers.py`), "" is llama-like.
    Raises ValueError for sizes that do not fit together, and for A * G = H: SGLang tells target states from fed-back
    features by their width alone and would skip `fc` without a word.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    aux_layers: tuple[int, ...]
    target_num_layers: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 4096
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    rope_llama3: tuple[float, ...] | None = None
    target_architecture: str = ""

    def __post_init__(self):
        object.__setattr__(self, "aux_layers", tuple(self.aux_layers))
        if self.rope_llama3 is not None:
            object.__setattr__(self, "rope_llama3", tuple(self.rope_llama3))
            factor, low, high, old_length = self.rope_llama3
            if not (factor >= 1 and 0 < low < high and old_length > 0):
                raise ValueError(f"rope_llama3={self.rope_llama3}: factor, low, high and length do not fit together")
        for name in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}, at least 1 is needed")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even: RoPE turns pairs")
        if not 0 < self.draft_vocab_size <= self.vocab_size:
            raise ValueError(f"draft_vocab_size={self.draft_vocab_size} must be in 1..vocab_size={self.vocab_size}")
        if len(self.aux_layers) * self.target_hidden_size == self.hidden_size:
            raise ValueError(
                f"hidden_size={self.hidden_size} equals the width of the {len(self.aux_layers)} aux states together: "
                "SGLang would take them for features and skip fc; choose another hidden_size or more aux_layers"
            )

    @property
    def owns_embedding(self) -> bool:
        """Must the drafter carry its own embedding, because the target's is of another width."""
        return self.hidden_size != self.target_hidden_size

    @property
    def full_vocabulary(self) -> bool:
        """Can the drafter name every id of the target."""
        return self.draft_vocab_size == self.vocab_size

    @classmethod
    def for_target(cls, target_config, aux_layers, draft_vocab_size, **changes):
        """The default drafter of a target: same width, heads and RoPE base as the target's own layers.

        It has EAGLE-3.1's norms. `changes` are fields that shall differ; None among them means the default. RoPE
        scaling is left out on purpose: a drafter needs no relation to the target's positions, only the same positions
        in training and serving. Raises ValueError for a name that is none of those the drafter is free in.
        """
        if unknown := changes.keys() - set(FREE):
            raise ValueError(f"a drafter has no {', '.join(map(repr, sorted(unknown)))} to choose; {', '.join(FREE)}")
        c = target_config
        heads = c.num_attention_heads
        latent_attention = getattr(c, "kv_lora_rank", None) is not None  # MLA has no per-head k/v to imitate
        head_dim = (
            c.hidden_size // heads if latent_attention else getattr(c, "head_dim", None) or c.hidden_size // heads
        )
        values = {
            "hidden_size": c.hidden_size,
            "intermediate_size": c.intermediate_size,
            "num_attention_heads": heads,
            "num_key_value_heads": heads if latent_attention else c.num_key_value_heads,
            "head_dim": head_dim,
            "vocab_size": c.vocab_size,
            "draft_vocab_size": draft_vocab_size,
            "target_hidden_size": c.hidden_size,
            "aux_layers": aux_layers,
            "target_num_layers": c.num_hidden_layers,
            "rms_norm_eps": float(c.rms_norm_eps),
            "rope_theta": float(rope_theta(c)),
            "max_position_embeddings": c.max_position_embeddings,
            "fc_norm": True,
            "norm_output": True,
            "target_architecture": (getattr(c, "architectures", None) or [""])[0],
        }
        return cls(**values | {name: value for name, value in changes.items() if value is not None})

    def to_dict(self) -> dict:
        """JSON values; what only foreign drafters have is left out when off: trainings from before it go on."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {name: value for name, value in values.items() if value or name not in FOREIGN}


def chosen_sizes(parameters) -> dict:
    """What a notebook's parameters choose of FREE: `draft_hidden_size` is hidden_size, and so on; None is left out.

    The EAGLE-3.1 switches, which a target does not have, are called `fc_norm` and `norm_output` there too.
    """
    given = {name: getattr(parameters, f"draft_{name}", getattr(parameters, name, None)) for name in FREE}
    return {name: value for name, value in given.items() if value is not None}


def rope_theta(target_config) -> float:
    """RoPE base of a transformers config, in its old (`rope_theta`) or new (`rope_parameters`) spelling."""
    parameters = getattr(target_config, "rope_parameters", None) or {}
    return parameters.get("rope_theta") or getattr(target_config, "rope_theta", None) or 10000.0
