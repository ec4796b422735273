"""Which server answers: one of our own, started when it is needed and kept, or one that somebody else runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from eagle3lab.draft.aux_layers import layers_sglang_reads
from eagle3lab.engines.servers.errors import ServerGone
from eagle3lab.engines.servers.findings import LaunchRefused, faults
from eagle3lab.engines.servers.kept import KeptServers
from eagle3lab.engines.servers.model_files import is_local, read_target
from eagle3lab.engines.sglang.attach import ServerInfo, attach
from eagle3lab.engines.sglang.guards import on_server
from eagle3lab.engines.sglang.server import SGLangServer
from eagle3lab.engines.sglang.spec import ServerSpec


@dataclass(frozen=True)
class Speculation:
    """What to speculate with: a drafter's folder and the shape of its chain or tree."""

    draft: str
    num_steps: int
    topk: int = 1
    num_draft_tokens: int | None = None

    @property
    def draft_tokens(self) -> int:
        """num_draft_tokens with the chain's default filled in."""
        return self.num_steps + 1 if self.num_draft_tokens is None else self.num_draft_tokens


class Running(Protocol):
    """A server that runs: ours or an attached one."""

    url: str

    def info(self) -> ServerInfo: ...


class OwnServers:
    """Servers of one specification, each started at its first use and kept for the next. python: their interpreter.
    logs, max_servers: as `KeptServers`."""

    def __init__(self, spec: ServerSpec, aux_layers, python: str | Path, logs: str | Path | None, max_servers: int):
        self.spec = spec
        self.aux_layers = aux_layers if aux_layers is not None else spec.aux_layers
        self._kept = KeptServers(lambda spec, log: SGLangServer(spec, python, log), logs, max_servers)

    def plain(self) -> SGLangServer:
        """A server without a drafter (the capturing one, when the specification captures)."""
        spec = self.spec
        return self._kept.run(replace(spec, draft=None, algorithm=None) if spec.draft else spec)

    def speculating(self, wanted: Speculation) -> SGLangServer:
        """A server with this drafter. Raises LaunchRefused for one that does not fit the target."""
        tokens = wanted.draft_tokens if wanted.topk == 1 else wanted.num_draft_tokens  # a tree must say it
        shape = {"num_steps": wanted.num_steps, "topk": wanted.topk, "num_draft_tokens": tokens}
        return self._kept.run(replace(self._uncaptured(), draft=os.path.abspath(wanted.draft), algorithm=None, **shape))

    def capturing(self) -> tuple[SGLangServer, str]:
        """A server that captures, and its capture folder."""
        spec = self.spec
        if spec.capture_folder is None:
            folder = self._kept.scratch()
            layers = None if self.aux_layers is None else tuple(self.aux_layers)
            spec = replace(spec, draft=None, algorithm=None, capture_folder=folder, aux_layers=layers, return_aux=False)
        return self._kept.run(spec), spec.capture_folder

    def told(self, server: Running, gone: ServerGone) -> ServerGone:
        """The error with the end of the server's log, when it was ours and is dead: the next call starts a new one."""
        return self._kept.told(server, gone)

    def close(self) -> None:
        """Ends all servers."""
        self._kept.close()

    def _uncaptured(self) -> ServerSpec:
        return replace(self.spec, draft=None, algorithm=None, capture_folder=None, return_aux=False, aux_layers=None)


class ForeignServer:
    """The server at `url`, which serves what it was started for and nothing else. `capture_folder` is the folder it was
    started with, when it captures."""

    def __init__(self, url: str, capture_folder: str | Path | None):
        self._server, self._capture_folder = attach(url), capture_folder
        info = self._server.info()
        self.target, self.aux_layers = info.target, None
        if info.captures and is_local(info.target):
            facts = read_target(info.target)
            self.aux_layers = layers_sglang_reads(info.layer_ids, facts.num_layers, facts.architecture)

    def plain(self) -> Running:
        return self._server

    def speculating(self, wanted: Speculation) -> Running:
        """Raises ValueError when the server speculates with something else, LaunchRefused when it does so wrongly."""
        info = self._server.info()
        if info.draft is None:
            raise ValueError(f"{info.url} does not speculate: start a server with the draft {wanted.draft}")
        has = (os.path.realpath(info.draft), info.num_steps, info.topk, info.num_draft_tokens)
        if has != (os.path.realpath(wanted.draft), wanted.num_steps, wanted.topk, wanted.draft_tokens):
            raise ValueError(
                f"{info.url} serves draft {info.draft} with num_steps={info.num_steps}, topk={info.topk}, "
                f"num_draft_tokens={info.num_draft_tokens}; asked for {wanted}"
            )
        if found := faults(on_server(info)):
            raise LaunchRefused(found)
        return self._server

    def capturing(self) -> tuple[Running, str]:
        if self._capture_folder is None or not self._server.info().captures:
            raise ValueError(
                f"{self._server.url} does not capture, or its folder is not known: start a server with capture_folder, "
                "and give the same folder here"
            )
        return self._server, str(self._capture_folder)

    def told(self, server: Running, gone: ServerGone) -> ServerGone:
        return gone

    def close(self) -> None:
        """Nothing: the server is not ours."""
