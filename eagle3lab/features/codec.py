"""How hidden states are stored: pure functions from states to small tensors and back.

Shapes: T tokens, A aux layers, H hidden, M slots with a teacher, E entries of a top-k teacher, V target vocabulary.

A codec is named "<aux>" or "<aux>+<teacher>"; without a teacher part the teacher is stored as the aux states are.

    aux      float32  4 A H bytes a token, exact
             bf16     2 A H, rounded to bfloat16
             fp8      A H + A: e4m3 values times a power of two, one exponent (int8) a token and aux layer
    teacher  float32, bf16, fp8: the post-norm last hidden state as above (4 H, 2 H, H + 1 bytes a teacher slot)
             top<k>   the k largest log probabilities (float16) and their ids (uint16 up to 65,536 ids, else int32), and
                      the log of the mass of all other ids (float16): 4 k + 2 or 6 k + 2 bytes a teacher slot

Token ids are int32, 4 bytes a token. Example: "fp8+top16" at A 3, H 576, V 49,152 is 1,735 + 66 bytes.
A value decoded from fp8 is exact in bfloat16: four significant bits times a power of two.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import torch

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
LARGEST_EXPONENT, FP8_MAX_THERE = 120, 240.0  # the next e4m3 value, 256 * 2**120, is infinite in bfloat16
LEAST_EXPONENT = -117  # the smallest e4m3 value is 2**-9: with this it stands for 2**-126, the least normal bfloat16
STATES = ("float32", "bf16", "fp8")
LOGIT_SLOTS = 64  # slots whose logits exist at one time; blocks of one size keep the heap from falling to pieces
ONE_THREAD = 32767  # elements up to which torch uses one thread
LEAST_LOG_P = -1e4  # probabilities below e**-10000 are kept as that, which float16 can hold
NAME = re.compile(r"(float32|bf16|fp8)(?:\+(float32|bf16|fp8|top([1-9]\d*)))?")


class TopK(NamedTuple):
    """Teacher distributions of M slots: the E likeliest ids, and the mass of all the others together."""

    ids_ME: torch.Tensor  # int64, target ids, likeliest first
    log_p_ME: torch.Tensor  # float32, log probability over the whole target vocabulary
    tail_M: torch.Tensor  # float32, log of the mass outside the entries


@dataclass(frozen=True)
class Codec:
    """A way to store rows. `top` is the k of a top-k teacher, 0 where the teacher is a hidden state."""

    aux: str
    teacher: str
    top: int = 0

    @classmethod
    def of(cls, name: str) -> "Codec":
        """The codec of a name such as "bf16", "fp8" or "fp8+top16". Raises ValueError for any other word."""
        match = NAME.fullmatch(name)
        if not match:
            raise ValueError(
                f"codec={name!r} is not one of {', '.join(STATES)}, nor two parts such as 'fp8+bf16' or 'fp8+top16'"
            )
        aux, teacher, top = match.groups()
        return cls(aux, "top" if top else teacher or aux, int(top or 0))

    @property
    def name(self) -> str:
        teacher = f"top{self.top}" if self.top else self.teacher
        return self.aux if teacher == self.aux else f"{self.aux}+{teacher}"

    def check_head(self, head_VH: torch.Tensor | None) -> None:
        """Raises ValueError when the codec needs the target's output head and it is missing, or smaller than k."""
        if self.top and head_VH is None:
            raise ValueError(f"codec={self.name!r} needs head_VH, the target's output head")
        if self.top and self.top >= head_VH.shape[0]:
            raise ValueError(f"top{self.top} is more than the {head_VH.shape[0] - 1} ids there are beside the tail")

    def bytes_per_token(self, hidden_size: int, aux_layers: int, teacher_share: float, vocab_size: int) -> float:
        """Payload bytes of a token when `teacher_share` (0..1) of the slots have a teacher; file headers extra."""
        if not 0.0 <= teacher_share <= 1.0:
            raise ValueError(f"teacher_share={teacher_share} is a share, 0..1")
        state = {"float32": 4 * hidden_size, "bf16": 2 * hidden_size, "fp8": hidden_size + 1}
        top = self.top * (2 + id_dtype(vocab_size).itemsize) + 2
        teacher = top if self.top else state[self.teacher]
        return 4 + aux_layers * state[self.aux] + teacher_share * teacher


def id_dtype(vocab_size: int) -> torch.dtype:
    """The smallest of uint16 and int32 that holds every id."""
    return torch.uint16 if vocab_size <= 1 << 16 else torch.int32


def working_dtype(kind: str) -> torch.dtype:
    """The dtype states are decoded to, and rounded to before they are encoded."""
    return torch.float32 if kind == "float32" else torch.bfloat16


def encode_states(kind: str, name: str, states: torch.Tensor) -> dict[str, torch.Tensor]:
    """States [..., H] -> stored tensors `name` [..., H] and, for fp8, `name`_exponent int8 [...]. Finite input only."""
    states = states.to(working_dtype(kind))
    if kind != "fp8":
        return {name: states}
    states = states.float()
    largest = states.abs().amax(-1)
    mantissa, exponent = torch.frexp(largest / FP8_MAX)  # largest <= 448 * 2**exponent, with mantissa in [0.5, 1)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(min=LEAST_EXPONENT)
    scaled = states.mul_(power_of_two(-exponent)[..., None])  # a copy of our own since float()
    if bool((exponent == LARGEST_EXPONENT).any()):
        limit = torch.where(exponent == LARGEST_EXPONENT, FP8_MAX_THERE, FP8_MAX)[..., None]
        scaled = scaled.clamp(-limit, limit)
    return {name: scaled.to(FP8), f"{name}_exponent": exponent.to(torch.int8)}


def decode_states(kind: str, name: str, stored: dict[str, torch.Tensor]) -> torch.Tensor:
    """The states of `encode_states` in the working dtype.

    fp8: the error of a value x of a vector with largest magnitude m is at most max(|x| / 16, step / 2), with
    step = max(m / 448 * 2**-8, 2**-126), the distance of the smallest values.
    """
    if kind != "fp8":
        return stored[name]
    values, scale = stored[name], power_of_two(stored[f"{name}_exponent"].to(torch.int32))[..., None]
    states = torch.empty(values.shape, dtype=torch.bfloat16)
    # in pieces that torch does not spread over threads: this runs beside the training, see Trainer.read_step
    tokens = max(1, ONE_THREAD // max(1, values[:1].numel()))
    for to, value, factor in zip(states.split(tokens), values.split(tokens), scale.split(tokens), strict=True):
        to.copy_(value.float() * factor)
    return states


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2 ** exponent as float32, exact, for int32 exponents -126..127 (written into the bits: pow may round)."""
    return ((exponent + 127) << 23).view(torch.float32)


def encode_top(last_MH: torch.Tensor, head_VH: torch.Tensor, top: int) -> dict[str, torch.Tensor]:
    """Post-norm last hidden states and the target's output head -> `top_ids`, `top_log_p` [M, E], `tail_log_p` [M].

    Logits are computed in the head's dtype, their normalisation in float32. Ties go to either id.
    """
    V = head_VH.shape[0]
    ids, log_p, tails = [], [], []
    for slots_MH in last_MH.split(LOGIT_SLOTS):
        # in place from here on: these are by far the largest tensors of an extraction
        logits_MV = (slots_MH.to(head_VH.dtype) @ head_VH.T).float()
        best = logits_MV.topk(top, dim=-1)
        parts_MV = logits_MV.sub_(best.values[:, :1]).exp_()  # in parts of the likeliest id's probability
        total_M = parts_MV.sum(-1)
        ids.append(best.indices)
        log_p.append(best.values - best.values[:, :1] - total_M.log()[:, None])
        tails.append(parts_MV.scatter_(1, best.indices, 0.0).sum(-1).log() - total_M.log())
    ids_ME, log_p_ME, tail_M = (torch.cat(parts) for parts in (ids, log_p, tails))
    return {
        "top_ids": ids_ME.to(id_dtype(V)),
        "top_log_p": log_p_ME.clamp(min=LEAST_LOG_P).half(),
        "tail_log_p": tail_M.clamp(min=LEAST_LOG_P).half(),
    }


def decode_top(stored: dict[str, torch.Tensor]) -> TopK:
    """The teacher of `encode_top`. A log probability lp is off by at most |lp| / 2048 (and 2**-25)."""
    return TopK(stored["top_ids"].long(), stored["top_log_p"].float(), stored["tail_log_p"].float())


def token_tensors(codec: Codec) -> list[str]:
    """Names of the stored tensors with one entry a token."""
    return ["input_ids", "aux"] + ["aux_exponent"] * (codec.aux == "fp8")


def teacher_tensors(codec: Codec) -> list[str]:
    """Names of the stored tensors with one entry a teacher slot."""
    if codec.top:
        return ["top_ids", "top_log_p", "tail_log_p"]
    return ["last"] + ["last_exponent"] * (codec.teacher == "fp8")
