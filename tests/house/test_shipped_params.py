"""Every shipped parameter file is a test case: it must fit the notebooks, by our runner and by papermill."""

import pytest
from papermill.iorw import read_yaml_file
from repository import ROOT

from eagle3lab.workbench.layers import COMMON, load_layer, profile_layers
from eagle3lab.workbench.params import resolve_parameters
from eagle3lab.workbench.stages import STAGES

FILES = sorted((ROOT / "params").glob("*/*.yaml"))
PROFILES = sorted({path.parent.name for path in FILES})


def test_the_profiles_of_the_makefile_are_there():
    assert {"smoke", "demo"} <= set(PROFILES)


def test_nothing_else_lies_among_the_parameter_files():
    assert sorted(path for path in (ROOT / "params").rglob("*") if path.is_file()) == FILES


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("stage", STAGES)
def test_a_profile_fits_every_stage(profile, stage):
    resolved = resolve_parameters(stage, profile)
    values, origins = resolved.values, resolved.origins
    layers = profile_layers(profile)
    for layer in (COMMON, stage):
        path, written = layers.get(layer, (None, {}))
        for name in written.keys() & values.keys():
            later = layer == COMMON and name in layers.get(stage, (None, {}))[1]
            if not later:
                assert values[name] == written[name], f"{path}: {name}"
                assert origins[name].endswith(f"{profile}/{layer}.yaml")
    assert values["profile"] == profile


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_papermill_reads_the_same_values_from_a_file(path):
    ours = load_layer(path)
    theirs = read_yaml_file(str(path)) or {}
    assert ours == theirs
    assert {name: type(value) for name, value in ours.items()} == {n: type(v) for n, v in theirs.items()}
