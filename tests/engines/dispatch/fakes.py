"""A server that answers by rule, at once or after a moment, and misbehaves where it is told to."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from eagle3lab.engines.base import Completion
from eagle3lab.engines.dispatch.journal import Journal, read_answers
from eagle3lab.engines.dispatch.policy import Policy
from eagle3lab.engines.dispatch.run import dispatch
from eagle3lab.engines.dispatch.work import Partition, Work
from eagle3lab.engines.servers.errors import ServerGone

PARTITION = Partition("short", concurrency=8, max_tokens=64, timeout_s=5.0)
QUICK = Policy(retries=2, pause_s=0.001, probe_s=0.005, longest_probe_s=0.02, deadline_s=20.0, pilot=2)


def answer_to(row_id: str, max_tokens: int) -> tuple[list[int], str]:
    """The answer that greedy decoding would give: it depends on the row alone."""
    digest = hashlib.sha256(row_id.encode()).digest()
    length = 1 + digest[0] % 80
    ids = [digest[1 + i % 31] for i in range(min(length, max_tokens))]
    return ids, "length" if length > max_tokens else "stop"


class FakeServer:
    """`delay(row id)`: seconds an answer takes. `trouble(row id, nth request for it)`: an error to raise instead, or
    None. `running`: requests on their way; what it saw is counted."""

    def __init__(self, name="fake", delay: Callable | None = None, trouble: Callable | None = None):
        self.name, self.delay, self.trouble = name, delay, trouble
        self.up = True
        self.asked: Counter[str] = Counter()
        self.order: list[str] = []
        self.running: set[str] = set()
        self.most = 0
        self.together: list[frozenset[str]] = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *failure):
        pass

    async def alive(self):
        return self.up

    async def generate(self, request):
        if not self.up:
            raise ServerGone(f"{self.name} refuses connections")
        self.asked[request.id] += 1
        self.order.append(request.id)
        self.running.add(request.id)
        self.most = max(self.most, len(self.running))
        self.together.append(frozenset(self.running))
        try:
            await asyncio.sleep(self.delay(request.id) if self.delay else 0)
            if not self.up:
                raise ServerGone(f"{self.name} went away")
            error = self.trouble(request.id, self.asked[request.id]) if self.trouble else None
            if error is not None:
                raise error
        finally:
            self.running.discard(request.id)
        ids, reason = answer_to(request.id, request.max_tokens)
        return Completion(request.id, list(request.input_ids), ids, reason, 0.01)


def work(n=60, name="set", partition=PARTITION, prefix=None):
    prefix = prefix or name
    return Work(name, partition, [(f"{prefix}-{i}", [1, 2, 3]) for i in range(n)])


def run(works, servers, folder: Path, **more):
    """Runs a dispatch to its end; all its views."""
    more.setdefault("policy", QUICK)
    return list(dispatch(works, servers, folder, "fake target", **more))


def answers(folder):
    """What the journal holds, without how long it took and who answered: row id -> the rest. A row that is there
    twice fails."""
    rows = {}
    for row in read_answers(folder):
        assert row["id"] not in rows, f"{row['id']} was done twice"
        rows[row["id"]] = (row["set"], row["prompt_ids"], row["output_ids"], row["finish_reason"])
    return rows


def expected(works):
    """The answers of an undisturbed run, by rule."""
    return {
        row_id: (one.set, ids, *answer_to(row_id, one.partition.max_tokens))
        for one in works
        for row_id, ids in one.prompts
    }


def aside(folder):
    """Row id -> kind of the rows that are set aside."""
    with Journal(folder, {}) as journal:
        return dict(journal.set_aside)
