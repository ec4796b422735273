"""The features of an extraction, whichever way it kept them."""

from pathlib import Path

from eagle3lab.engines.embedded import EmbeddedEngine
from eagle3lab.features.layout import PLAN
from eagle3lab.features.live import LiveFeatures, write_plan
from eagle3lab.features.store import FeatureStore
from eagle3lab.workbench.files import read_json

__all__ = ["open_features", "write_plan"]


def open_features(
    folder: str | Path, target: str | Path, device: str = "cpu", trust_remote_code: bool = False, processes: int = 1
) -> FeatureStore | LiveFeatures:
    """The feature store in a folder; or, where only the rows were kept, rows that the embedded engine captures when
    they are read. target: the target's local folder, loaded in the second case only, with
    code of its own where that is trusted. processes: how many will train; ValueError where several would capture."""
    folder = Path(folder)
    if not (folder / PLAN).exists():
        return FeatureStore(folder)
    if processes > 1:
        raise ValueError(
            f"processes={processes}, but {folder} keeps no states (features: live), and one process alone can capture: "
            "set processes to 1, or run notebook 03 with features: store"
        )
    plan = read_json(folder / PLAN)
    engine = EmbeddedEngine(target, plan["dtype"], plan["aux_layers"], device, trust_remote_code=trust_remote_code)
    return LiveFeatures.open(folder, engine.capture, engine.lm_head_VH)
