"""A dispatch from ordinary code: a loop over views, in a notebook, a script or a REPL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eagle3lab.engines.dispatch.backend import Backend
from eagle3lab.engines.dispatch.dispatcher import Dispatcher
from eagle3lab.engines.dispatch.journal import Journal
from eagle3lab.engines.dispatch.policy import Policy
from eagle3lab.engines.dispatch.view import View
from eagle3lab.engines.dispatch.work import Sampling, Work
from eagle3lab.engines.servers.threads import iterate_in_thread


def dispatch(
    works: Sequence[Work],
    backends: Sequence[Backend],
    folder: str | Path,
    target: str,
    policy: Policy | None = None,
    sampling: Sampling | None = None,
    retry_set_aside: bool = False,
) -> Iterator[View]:
    """Answers all rows of `works` that the journal in `folder` does not hold yet; yields views until it is done.

    The work goes on in a thread of its own while the loop's body runs. A loop that is left early, by an exception or
    by the interrupt key, cancels what is on its way and closes the journal; call again to go on. `target` names the
    model: a journal is continued only with the same target, sampling and max_tokens. `retry_set_aside` asks again for
    rows that were set aside before. Raises WorkError, JournalError, GaveUp, OSError (disk full).
    """
    sampling = sampling or Sampling()

    async def views() -> AsyncIterator[View]:
        with Journal(folder, journal_settings(works, target, sampling)) as journal:
            dispatcher = Dispatcher(works, backends, journal, policy or Policy(), sampling, retry_set_aside)
            async with aclosing(dispatcher.views()) as shown:  # what is on its way ends before the journal closes
                async for view in shown:
                    yield view

    return iterate_in_thread(views)


def journal_settings(works: Sequence[Work], target: str, sampling: Sampling) -> Mapping[str, Any]:
    """What the answers depend on, as the journal keeps it."""
    limits = {f"max_tokens of {work.set}": work.partition.max_tokens for work in works}
    return {"target": target, **asdict(sampling), **limits}
