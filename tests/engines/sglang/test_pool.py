"""Which server is started, kept, ended and begun anew; servers are stand-ins here, real ones in tests/sglang."""

import pytest

from eagle3lab.engines.servers.errors import ServerGone
from eagle3lab.engines.sglang import pool
from eagle3lab.engines.sglang.pool import OwnServers, Speculation
from eagle3lab.engines.sglang.spec import ServerSpec


class Server:
    """Notes what happens to it."""

    made: list["Server"] = []

    def __init__(self, spec, python, log):
        self.spec, self.log, self.url, self.lives = spec, log, f"http://127.0.0.1:{len(Server.made)}", False
        Server.made.append(self)

    def start(self):
        self.lives = True
        return self

    def stop(self):
        self.lives = False

    def alive(self):
        return self.lives


@pytest.fixture
def servers(monkeypatch, tmp_path):
    monkeypatch.setattr(pool, "SGLangServer", Server)
    Server.made = []

    def make(max_servers=1, **spec):
        return OwnServers(ServerSpec("target", device="cpu", **spec), [1, 2, 3], "python", tmp_path, max_servers)

    return make


def living():
    return [server.spec for server in Server.made if server.lives]


def test_a_server_is_kept_for_the_next_question_of_its_kind(servers):
    own = servers()
    assert own.plain() is own.plain() and len(Server.made) == 1
    chain = own.speculating(Speculation("/draft", 3))
    assert own.speculating(Speculation("/draft", 3)) is chain
    assert own.speculating(Speculation("/draft", 3, num_draft_tokens=4)) is chain
    assert (chain.spec.draft, chain.spec.num_steps, chain.spec.draft_tokens) == ("/draft", 3, 4)
    assert own.speculating(Speculation("/draft", 2)) is not chain
    assert own.speculating(Speculation("/draft", 3, 4, 8)).spec.draft_tokens == 8


def test_the_one_that_was_used_longest_ago_makes_room(servers):
    own = servers(max_servers=2)
    plain, chain = own.plain(), own.speculating(Speculation("/draft", 3))
    assert own.plain() is plain and len(living()) == 2
    other = own.speculating(Speculation("/draft", 2))
    assert living() == [plain.spec, other.spec] and not chain.lives


def test_a_dead_server_is_cleared_away_and_a_new_one_started(servers):
    own = servers()
    first = own.plain()
    first.lives = False
    told = own.told(first, ServerGone("gone", "url", "r0"))
    assert (
        (told.url, told.row_id) == ("url", "r0") and str(first.log) in str(told) and "a new one is started" in str(told)
    )
    second = own.plain()
    assert second is not first and second.lives and first.log != second.log


def test_a_lost_connection_to_a_living_server_is_told_as_it_is(servers):
    own, gone = servers(), ServerGone("gone", "url", "r0")
    assert own.told(own.plain(), gone) is gone


def test_a_draft_and_captured_states_need_servers_of_their_own(servers):
    own = servers(max_servers=3, draft="/other", topk=1)
    assert own.plain().spec.draft is None
    server, folder = own.capturing()
    assert server.spec.capture_folder == folder and server.spec.aux_layers == (1, 2, 3) and server.spec.draft is None
    chain = own.speculating(Speculation("/draft", 3))
    assert chain.spec.draft == "/draft" and not chain.spec.captures


def test_a_capturing_server_also_generates(servers, tmp_path):
    own = servers(max_servers=3, capture_folder=str(tmp_path), aux_layers=(0, 1))
    server, folder = own.capturing()
    assert folder == str(tmp_path) and own.plain() is server
    assert not own.speculating(Speculation("/draft", 3)).spec.captures


def test_closing_ends_all(servers):
    own = servers(max_servers=3)
    own.plain(), own.capturing(), own.speculating(Speculation("/draft", 3))
    own.close()
    assert living() == [] and len(Server.made) == 3
    assert own.plain().lives  # and may be used again


def test_at_least_one_server_must_be_allowed(servers):
    with pytest.raises(ValueError, match="max_servers=0"):
        servers(max_servers=0)


def test_a_tree_must_say_how_many_of_its_nodes_are_verified(servers):
    with pytest.raises(ValueError, match="num_draft_tokens"):
        servers().speculating(Speculation("/draft", 3, topk=4))
