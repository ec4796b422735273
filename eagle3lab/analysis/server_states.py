"""The states that a server hands its drafter, against the embedded engine's: the same layers, the same values?

Shapes: T tokens, A aux layers, L target layers, H hidden, E = A x H as a server sends them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch

from eagle3lab.analysis.heldout import AnswerRow
from eagle3lab.analysis.paths import nearest_layers, state_errors
from eagle3lab.analysis.verdict import Checked
from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.engines.sglang.assemble import RowError
from eagle3lab.engines.sglang.attach import ServerInfo, attach
from eagle3lab.engines.sglang.capture import capture_json

ROWS, TOKENS = 3, 48  # JSON is slow: the beginnings of a few rows, whose states hang on nothing that follows
SAME_STATES, SAME_ROUNDED = 1e-3, 0.03  # relative error that rounding makes in float32, and in 8 or 11 bits
CHECK = "states of the server = states of the embedded engine"


@dataclass(frozen=True)
class LayerStates:
    """One aux layer (hs index) as the server gave it: its relative error, and the hs index that it is nearest to."""

    layer: int
    error: float
    nearest_layer: int
    error_there: float


@dataclass(frozen=True)
class ServerStates:
    """The comparison; `why` says why there is none, or what was wrong before any layer could be compared."""

    layers: tuple[LayerStates, ...] = ()
    same: float = 0.0
    tokens: int = 0
    why: str = ""
    wrong_size: bool = False

    @property
    def compared(self) -> bool:
        return bool(self.layers) or self.wrong_size

    @property
    def equal(self) -> bool:
        """Do they differ by rounding only."""
        return bool(self.layers) and all(one.error < self.same for one in self.layers)

    @property
    def facts(self) -> dict[str, str]:
        """Cause (of `suspects.REMEDIES`) that the states show, and what shows it."""
        if self.wrong_size:
            return {"flag": self.why}
        other = [one for one in self.layers if one.nearest_layer != one.layer]
        if other:
            return {"layers": "; ".join(f"for hs[{one.layer}] it gives hs[{one.nearest_layer}]" for one in other)}
        return {} if self.equal or not self.layers else {"target": str(self)}

    @property
    def excluded(self) -> set[str]:
        """Causes that cannot be when the states are the same."""
        return {"layers", "target"} if self.equal else set()

    def __str__(self):
        if not self.layers:
            return f"states of the server {'are of another size' if self.wrong_size else 'not compared'}: {self.why}"
        worst = max(self.layers, key=lambda one: one.error)
        size = f"relative error of {self.tokens} tokens at most {worst.error:.1e}, at hs[{worst.layer}]"
        return f"states of the server: {size}"

    def to_dict(self) -> dict:
        """Plain JSON values."""
        return asdict(self) | {"found": str(self), "equal": self.equal if self.compared else None}

    def checked(self) -> list[Checked]:
        """The line of checks.json; none where nothing was compared."""
        return [Checked(CHECK, str(self), self.equal)] if self.compared else []


def compare_states(url: str | None, engine, rows: Sequence[AnswerRow]) -> ServerStates:
    """Compares the beginnings of a few rows, captured by an embedded `engine`, with the states of the server at `url`.

    A server gives them when it was started with --enable-return-hidden-states (one that speculates with EAGLE3) or
    --enable-return-aux-hidden-states (one without a drafter). Errors of `attach` and `capture_json`.
    """
    if url is None:
        return ServerStates(why="no server was named (server_url)")
    if not isinstance(engine, EmbeddedEngine):
        return ServerStates(why="this process runs no target: those of the simulation are a server's, too")
    info = attach(url).info()
    if not offers_states(info):
        return ServerStates(why=f"{url} gives none; start it with --enable-return-hidden-states")
    few = [replace(row, input_ids_T=row.input_ids_T[:TOKENS], aux_TAH=row.aux_TAH[:TOKENS]) for row in rows[:ROWS]]
    try:
        given = dict(capture_json(url, [(row.id, row.input_ids_T.tolist()) for row in few]))
    except RowError as error:  # it prefills in small pieces
        return ServerStates(why=str(error))
    layers, (_, A, H) = list(engine.aux_layers), few[0].aux_TAH.shape
    size = next(iter(given.values())).shape[1]
    if size != A * H:
        why = f"{size} numbers a token in place of {A} x {H}, so the server does not capture the drafter's layers"
        return ServerStates(why=why, wrong_size=True)
    served = [replace(row, aux_TAH=given[row.id].unflatten(1, (A, H))) for row in few]
    errors = [one.error for one in state_errors(few, served, layers)]
    found = [LayerStates(layer, error, layer, error) for layer, error in zip(layers, errors, strict=True)]
    exact = info.dtype == "float32" and few[0].aux_TAH.dtype == torch.float32
    same = SAME_STATES if exact else SAME_ROUNDED
    if max(errors) >= same:
        nearest = nearest_layers(torch.cat([row.aux_TAH for row in served]), every_layer(engine, few))
        found = [
            replace(one, nearest_layer=k, error_there=there) for one, (k, there) in zip(found, nearest, strict=True)
        ]
    return ServerStates(tuple(found), same, sum(len(row.input_ids_T) for row in few))


def offers_states(info: ServerInfo) -> bool:
    """Does the server give the states of a whole prompt with an answer."""
    get = info.arguments.get
    return info.captures or bool(get("enable_return_hidden_states") and get("return_hidden_states_mode") != "last")


def every_layer(engine: EmbeddedEngine, rows: Sequence[AnswerRow]) -> torch.Tensor:
    """hs[0..L-1] of all tokens of the rows, [T, L, H] float32, by an engine made for it."""
    target = engine.target
    layers = range(target.num_layers)
    other = EmbeddedEngine(
        target.folder, "float32", layers, str(target.device), trust_remote_code=target.trust_remote_code
    )
    by_id = {states.id: states for states in other.capture([(row.id, row.input_ids_T.tolist()) for row in rows])}
    return torch.cat([by_id[row.id].aux_TAH.float() for row in rows])
