"""The numbers of a server: names of all releases, order of verifications, the cut at an answer's end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.analysis.accept import accept_length
from eagle3lab.analysis.accept import histogram as lab_histogram
from eagle3lab.engines.servers.verifications import CountsDisagree, cut_to_answer
from eagle3lab.engines.sglang.stats import SpecStats, accepts_in_order

# By hand: the prefill gives 1 token; verifications that accept 0, 0, 1, 2 and 3 drafts give these and a bonus token
# each: 1 + (0 + 0 + 1 + 2 + 3) + 5 = 12 tokens. SGLang divides all of them by the 5 verifications; the lab leaves
# out the prefill's and says 11 / 5 = 2.2. Of 5 x 3 proposed drafts 6 were accepted.
TOLD = {"completion_tokens": 12, "spec_verify_ct": 5, "spec_accept_length": 2.4, "spec_accept_rate": 0.4}
KNOWN = SpecStats(5, 6, 15, 2.4, 0.4, (2, 1, 1, 1))


@pytest.mark.parametrize(
    "named",
    [
        {"spec_num_correct_drafts": 6, "spec_num_proposed_drafts": 15, "spec_correct_drafts_histogram": [2, 1, 1, 1]},
        {"spec_accepted_drafts": 6, "spec_proposed_drafts": 15, "spec_accept_histogram": [2, 1, 1, 1]},
        {"spec_accept_token_num": 6, "spec_draft_token_num": 15, "spec_accept_histogram": [2, 1, 1, 1]},
    ],
)
def test_every_release_is_read_into_the_same_fields(named):
    assert SpecStats.from_meta_info(TOLD | named) == KNOWN


def test_the_known_numbers_agree_with_each_other():
    drafts = [count for count, times in enumerate(KNOWN.histogram) for _ in range(times)]
    assert (len(drafts), sum(drafts)) == (KNOWN.verifications, KNOWN.accepted_drafts)
    completion_tokens = 1 + sum(accepted + 1 for accepted in drafts)
    assert completion_tokens == TOLD["completion_tokens"]
    assert completion_tokens / KNOWN.verifications == KNOWN.accept_length
    assert KNOWN.accepted_drafts / KNOWN.proposed_drafts == KNOWN.accept_rate
    assert accept_length(completion_tokens - 1, KNOWN.verifications) == 2.2


def test_the_newest_name_wins_where_a_release_gives_several():
    meta = TOLD | {"spec_num_correct_drafts": 6, "spec_accepted_drafts": 99}
    assert SpecStats.from_meta_info(meta).accepted_drafts == 6


def test_what_is_not_told_is_none():
    assert SpecStats.from_meta_info({}) == SpecStats()
    assert SpecStats.from_meta_info({"spec_verify_ct": 3}) == SpecStats(verifications=3)


@pytest.mark.parametrize("value", ["5", -1, 2.5, True, None, [5], float("nan")])
def test_a_count_of_another_kind_is_not_told(value):
    assert SpecStats.from_meta_info({"spec_verify_ct": value}).verifications is None


@pytest.mark.parametrize("value", [[1, "2"], [1, -1], {"0": 1}, [True], 3])
def test_a_histogram_of_another_kind_is_not_told(value):
    assert SpecStats.from_meta_info({"spec_accept_histogram": value}).histogram is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "2.6", -2.6])
def test_a_length_of_another_kind_is_not_told(value):
    assert SpecStats.from_meta_info({"spec_accept_length": value}).accept_length is None


def test_a_verification_of_n_tokens_accepted_n_minus_1_drafts():
    after = [1, 5, 6, 9]  # prefill: 1 token; then verifications of 4, 1 and 3 tokens
    assert accepts_in_order(after, 3) == [3, 0, 2]
    assert accepts_in_order(after, 3, [1, 0, 1, 1]) == [3, 0, 2]


def test_the_prefill_may_arrive_with_the_first_verification():
    assert accepts_in_order([5, 6], 2) == [3, 0]


def test_an_answer_of_one_token_has_no_verification():
    assert accepts_in_order([1], None) == []


def test_a_cut_last_verification_still_fits_the_servers_histogram():
    after = [1, 5, 7]  # the second accepted 3, the answer ends after 2 tokens
    assert accepts_in_order(after, 2, [0, 0, 0, 2]) == [3, 1]


@pytest.mark.parametrize(("after", "verifications"), [([1, 8], 2), ([1, 5, 6], None), ([1, 5, 6], 0), ([], 1)])
def test_an_order_that_cannot_be_told_is_not_invented(after, verifications):
    assert accepts_in_order(after, verifications) is None


@pytest.mark.parametrize("histogram", [[1, 0, 0, 1], [0, 0, 0, 2], [1, 1, 0, 1], [2, 0, 0, 0], []])
def test_a_list_that_contradicts_the_histogram_is_refused(histogram):
    with pytest.raises(CountsDisagree, match=r"\[3, 0, 2\]"):
        accepts_in_order([1, 5, 6, 9], 3, histogram)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(0, 5))
def test_any_answer_is_told_in_order_and_fits_its_histogram(drafts, lost):
    """Brute force: events are written as a server writes them, the last one cut by `lost` tokens."""
    lost = min(lost, drafts[-1])
    after = [1]
    for accepted in drafts:
        after.append(after[-1] + accepted + 1)
    after[-1] -= lost
    expected = drafts[:-1] + [drafts[-1] - lost]
    assert accepts_in_order(after, len(drafts), lab_histogram(drafts, 5)) == expected
    assert cut_to_answer(drafts, after[-1]) == expected


def test_an_answer_is_cut_where_it_is_kept():
    assert cut_to_answer([3, 0, 2], 9) == [3, 0, 2]  # 1 + 4 + 1 + 3
    assert cut_to_answer([3, 0, 2], 8) == [3, 0, 1]
    assert cut_to_answer([3, 0, 2], 6) == [3, 0]
    assert cut_to_answer([3, 0, 2], 3) == [1]
    assert cut_to_answer([3, 0, 2], 1) == []
    with pytest.raises(CountsDisagree, match="1 tokens before the answer of 10"):
        cut_to_answer([3, 0, 2], 10)
