"""A run like the case's, replayed event by event: a server that shares its tokens per second among its requests.

The simulation knows nothing of the code under test but the counters it feeds; its truth is when its last event is.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from eagle3lab.engines.dispatch.tally import Tally
from eagle3lab.engines.dispatch.work import Partition, Work

TOTAL, STREAM = 830.0, 90.0  # tokens a second of the server, and of a request that is alone: the case's numbers


def lognormal_lengths(n, mean, sigma, cap, generator):
    """n answer lengths: log-normal of spread sigma, cut at cap, with this mean after the cut."""
    z = np.random.default_rng(0).standard_normal(100_000)
    low, high = 0.0, 12.0
    for _ in range(50):
        mu = (low + high) / 2
        shorter = np.minimum(np.ceil(np.exp(mu + sigma * z)), cap).mean() < mean
        low, high = (mu, high) if shorter else (low, mu)
    return np.minimum(np.ceil(np.exp(mu + sigma * generator.standard_normal(n))), cap).astype(int)


@dataclass
class Replay:
    """Sets as (name, partition, lengths), in order; the first `pilot` rows of each before all others."""

    sets: list
    pilot: int = 0
    prompts: list | None = None  # work of each row's prompt, of the only set
    told: bool = True  # whether the counters are told of it
    phases: tuple = ()  # (seconds, factor on the speed) from the beginning on; then full speed

    def __post_init__(self):
        order = [(s, i) for s, (_, _, lengths) in enumerate(self.sets) for i in range(len(lengths))]
        self.order = sorted(order, key=lambda row: row[1] >= self.pilot)
        events, end = self._play()
        self.events = [(self._slowed(when), s, i, ended) for when, s, i, ended in events]
        self.end = self._slowed(end)

    def _slowed(self, when):
        """When that happens which would happen at `when` at full speed."""
        now = 0.0
        for seconds, factor in self.phases:
            if when <= seconds * factor:
                return now + when / factor
            now, when = now + seconds, when - seconds * factor
        return now + when

    def _play(self):
        """(time, set, row, ended) of everything that happens."""
        events, running = [], []
        now = progress = load = 0.0  # progress: tokens that a request has which runs since the start
        waiting = iter(self.order)
        row = next(waiting, None)
        while running or row is not None:
            while row is not None:
                s, i = row
                share = 1 / self.sets[s][1].concurrency
                if load + share > 1 + 1e-9:
                    break
                load += share
                heapq.heappush(running, (progress + int(self.sets[s][2][i]) + self._prompt(i), s, i))
                events.append((now, s, i, False))
                row = next(waiting, None)
            until, s, i = heapq.heappop(running)
            now += (until - progress) / min(STREAM, TOTAL / (len(running) + 1))
            progress = until
            load -= 1 / self.sets[s][1].concurrency
            events.append((now, s, i, True))
        return events, now

    def tally_at(self, moment):
        """What the counters hold at a moment, sampled a hundred times until then."""
        works = [Work(name, partition, []) for name, partition, _ in self.sets]
        prompts = {self.sets[0][0]: sum(self.prompts)} if self.prompts and self.told else None
        tally = Tally(works, {name: len(lengths) for name, _, lengths in self.sets}, 0.0, prompts)
        sample = 0.0
        for when, s, i, ended in self.events:
            if when > moment:
                break
            while sample <= when:
                tally.sample(sample)
                sample += moment / 100
            name, partition, lengths = self.sets[s]
            if ended:
                cut = lengths[i] == partition.max_tokens
                tally.finish(name, f"{s}-{i}", int(lengths[i]), "length" if cut else "stop", when)
            else:
                tally.start(name, f"{s}-{i}", when, self._prompt(i) if self.told else 0.0)
        tally.sample(moment)
        return tally

    def _prompt(self, i):
        return self.prompts[i] if self.prompts else 0.0

    def naive_seconds(self, tally):
        """Rows left times the mean length of the answers so far, over the true speed: what the case believed."""
        done = sum(one.done for one in tally.sets.values())
        tokens = sum(one.lengths.tokens for one in tally.sets.values())
        return (len(self.order) - done) * tokens / done / TOTAL


def case_run(seed, rows=20_000, sigma=1.8, **options):
    """One set like the case's: mean 788 tokens, cap 10240, 150 at a time."""
    generator = np.random.default_rng(seed)
    lengths = lognormal_lengths(rows, 788, sigma, 10240, generator)
    return Replay([("prompts", Partition("short", 150, 10240), lengths)], **options)


def shortest_prompts_first(seed, told, rows=2000):
    """As the embedded engine goes through a set: prompts of 30 to 160 tokens in order, short answers, 96 at a time."""
    generator = np.random.default_rng(seed)
    lengths = np.minimum(generator.integers(60, 160, rows), 112)
    prompts = sorted(0.75 * float(tokens) for tokens in generator.integers(30, 160, rows))
    return Replay([("prompts", Partition("short", 96, 112), lengths)], prompts=prompts, told=told)


def ten_sets(seed, pilot):
    """The case's eight sets to answer, with lengths that differ by kind (made up; mean 788 over all), in order."""
    generator = np.random.default_rng(seed)
    short, long = Partition("short", 150, 10240), Partition("long", 32, 16384)
    kinds = [
        ("B1", short, 10_000, 180), ("B2", short, 14_714, 420), ("B3", short, 10_000, 560), ("B4", short, 10_002, 1900),
        ("B5", short, 10_000, 2250), ("B6", short, 15_000, 480), ("B7", short, 10_000, 350), ("B8", long, 3_572, 600),
    ]  # fmt: skip
    return Replay(
        [
            (name, partition, lognormal_lengths(rows, mean, 1.1, partition.max_tokens, generator))
            for name, partition, rows, mean in kinds
        ],
        pilot,
    )
