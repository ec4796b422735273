"""The recipe: what it refuses, and where a notebook's parameters make it."""

import json
import math
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoConfig

from eagle3lab.draft.config import FREE, DraftConfig, chosen_sizes
from eagle3lab.draft.recipe import Recipe
from eagle3lab.workbench.params import read_parameters

BAD = [
    {"ttt_steps": 0},
    {"optimizer": "sgd"},
    {"loss_mask_kind": "none"},
    {"lk_weight": 1.5},
    {"lk_form": "square"},
    {"long_rows": "cut"},
    {"compute_dtype": "float16"},
    {"step_decay": 0.0},
    {"step_weights": [1.0, 0.5]},
    {"step_weights": [1.0, 0.5, 0.0]},
    {"max_length": 4},
    {"explode_factor": 1.0},
    {"clip_norm": 0.0},
    {"clip_norm": -1.0},
    {"warmup_share": 1.0},
    {"warmup_share": -0.1},
    {"final_lr_share": 1.01},
    {"final_lr_share": -1.0},
    {"lr": 0.0},
    {"lr": -1e-3},
    {"head_lr": 0.0},
    {"weight_decay": -0.1},
    {"epochs": 0},
    {"batch_tokens": 0},
    {"accumulate": 0},
]
FLOATS = sorted(name for name, value in vars(Recipe()).items() if isinstance(value, float))


@pytest.mark.parametrize("change", BAD, ids=str)
def test_bad_recipes_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Recipe(**change)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("name", FLOATS)
def test_every_number_of_a_recipe_is_finite(name, value):
    with pytest.raises(ValueError, match=name):
        Recipe(**{name: value})
    with pytest.raises(ValueError, match="step_weights"):
        Recipe(ttt_steps=2, step_weights=[1.0, value])


def test_the_edges_of_what_a_recipe_may_be():
    Recipe(warmup_share=0.0, final_lr_share=0.0, weight_decay=0.0, clip_norm=1e-9, lk_weight=1.0)
    Recipe(warmup_share=0.999, final_lr_share=1.0, lr=3.0, explode_factor=None)


def test_a_recipe_is_made_of_the_parameters_that_exist():
    recipe = Recipe.of(SimpleNamespace(lr=1e-3, step_weights=[3, 2, 1], seed=4, profile="demo"))
    assert recipe == Recipe(lr=1e-3, step_weights=(3, 2, 1), seed=4)
    assert Recipe(**json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert recipe.weights_K().tolist() == [3, 2, 1]
    assert Recipe(step_decay=0.5).weights_K().tolist() == [1, 0.5, 0.25]


def test_the_notebook_has_every_knob_with_the_default_of_the_recipe():
    told = read_parameters(Path(__file__).parents[2] / "notebooks" / "04_training.ipynb")
    defaults = SimpleNamespace(**{param.name: param.default for param in told})
    assert {field.name for field in fields(Recipe)} <= vars(defaults).keys()
    assert Recipe.of(defaults) == Recipe()
    given = chosen_sizes(defaults)
    assert given == {"fc_norm": True, "norm_output": True}
    sizes_of_target = AutoConfig.for_model("llama")
    assert DraftConfig.for_target(sizes_of_target, (2, 16, 29), 100, **given) == DraftConfig.for_target(
        sizes_of_target, (2, 16, 29), 100
    )
    sizes = {f"draft_{name}" for name in FREE if name.startswith(("hidden", "intermediate", "num", "head"))}
    assert len(sizes) == 5 and sizes <= vars(defaults).keys()
    chosen = chosen_sizes(SimpleNamespace(draft_head_dim=16, draft_hidden_size=None, fc_norm=True, norm_output=False))
    assert chosen == {"head_dim": 16, "fc_norm": True, "norm_output": False}
