"""How patient a dispatch is, and what ends it early."""

from dataclasses import dataclass

from eagle3lab.engines.servers.errors import ServerError


@dataclass(frozen=True)
class Policy:
    """Rules for rows that fail and servers that go. All times are seconds.

    retries        more requests for a row whose request failed while its server was well (time-out, 5xx, an answer
                   that is none), on another server where there is one; the pause before the n-th is
                   `pause_s * 4 ** (n - 1)`. Then the row is set aside. A row that is refused (4xx) is set aside when
                   a second server refuses it too, or at once where there is one server.
    lost           a row that went down with its server so many times runs again at the very end, with nothing beside
                   it, and is set aside when the server goes down twice more.
    bad_in_a_row   a server that refused or failed so many requests without one answer in between is sick (rows that
                   are too long do not count): it gets one row at a time until it answers, and rows are not blamed.
    probe_s        pause before a server that is gone or sick is tried again; doubles up to `longest_probe_s`.
    deadline_s     with no server up and well for so long the dispatch gives up; everything finished is kept. At once
                   when all are sick with refusals and never answered anything: something is set wrongly.
    pilot          rows of every set that run first of all, so that the time left knows the later sets.
    stream_tok_s   tokens a second of a request that is alone, if it was measured; for the end of the time left.
    """

    retries: int = 3
    pause_s: float = 2.0
    lost: int = 3
    bad_in_a_row: int = 100
    probe_s: float = 1.0
    longest_probe_s: float = 30.0
    deadline_s: float = 3600.0
    pilot: int = 64
    stream_tok_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("retries", "pilot"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 0")
        for name in ("pause_s", "lost", "bad_in_a_row", "probe_s", "longest_probe_s", "deadline_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0")


class GaveUp(ServerError):
    """A dispatch that ended with rows still waiting. Everything settled is in the journal; start again to go on."""
