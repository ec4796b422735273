"""A server specification refuses what contradicts itself, and names the parameter."""

import pytest

from eagle3lab.engines.sglang.spec import ServerSpec, SpecError


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"target": ""}, "target"),
        ({"dtype": "int8"}, "dtype"),
        ({"device": "tpu"}, "device"),
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": True}, "num_steps"),
        ({"tp": 1.5}, "tp"),
        ({"max_total_tokens": -1}, "max_total_tokens"),
        ({"mem_fraction": 1.5}, "mem_fraction"),
        ({"topk": 4, "draft": "d"}, "num_draft_tokens"),
        ({"draft": "d", "return_aux": True}, "without a draft"),
        ({"draft": "d", "capture_folder": "c"}, "without a draft"),
        ({"return_aux": True, "algorithm": "EAGLE"}, "algorithm"),
        ({"aux_layers": [2, 4, 5]}, "aux_layers"),
        ({"return_aux": True, "aux_layers": [-1, 2, 3]}, "aux_layers"),
        ({"return_aux": True, "aux_layers": []}, "aux_layers"),
        ({"algorithm": "EAGLE3"}, "needs a draft"),
        ({"algorithm": "NGRAM", "draft": "d"}, "NGRAM"),
        ({"extra": "--enable-metrics"}, "extra"),
        ({"extra": ["--speculative-algorithm", "EAGLE"], "draft": "d"}, "extra has '--speculative-algorithm'"),
        ({"extra": ["--enable-metrics", "--speculative-algorithm=EAGLE"]}, "--speculative-algorithm=EAGLE"),
        ({"extra": ["--dtype", "half"]}, "--dtype is written"),
        ({"extra": ["--cuda-graph-backend-decode", "disabled"]}, "cuda_graphs"),
    ],
)
def test_a_contradiction_is_refused_by_name(changes, named):
    with pytest.raises(SpecError, match=named):
        ServerSpec(**{"target": "t", **changes})


def test_the_algorithm_follows_from_what_the_server_is_for():
    assert ServerSpec("t").speculation is None
    assert ServerSpec("t", draft="d").speculation == "EAGLE3"
    assert ServerSpec("t", draft="d", algorithm="eagle").speculation == "EAGLE"
    assert ServerSpec("t", capture_folder="c").speculation == "EAGLE3"


def test_a_chain_verifies_one_token_more_than_it_drafts():
    assert ServerSpec("t", draft="d", num_steps=5).draft_tokens == 6
    assert ServerSpec("t", draft="d", num_steps=5, topk=4, num_draft_tokens=8).draft_tokens == 8
