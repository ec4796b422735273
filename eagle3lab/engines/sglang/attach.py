"""A server that somebody else runs: what it says of how it was started, the same for all releases.

SGLang 0.5 answers `/server_info` and `/model_info`; older releases `/get_server_info` and `/get_model_info`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3lab.engines.servers.errors import BadAnswer, ServerFault, ServerGone
from eagle3lab.engines.servers.http import TIMEOUT_S, answer


@dataclass(frozen=True)
class ServerInfo:
    """How a server was started and how it does. None: this release does not tell it.

    algorithm, num_steps, topk, num_draft_tokens, draft: its speculation (algorithm None: it does not speculate).
    captures: it hands out aux states; layer_ids are SGLang's ids of them, None for its default layers.
    accept_length: mean over its life so far, SGLang's count (the prefill's token is in it).
    arguments: everything it answered.
    """

    url: str
    version: str
    target: str
    architecture: str
    algorithm: str | None
    num_steps: int | None
    topk: int | None
    num_draft_tokens: int | None
    draft: str | None
    dtype: str | None
    device: str | None
    context_length: int | None
    tp: int | None
    max_running_requests: int | None
    max_total_tokens: int | None
    radix_cache: bool
    captures: bool
    layer_ids: list[int] | None
    accept_length: float | None
    launch_command: str | None
    arguments: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class AttachedServer:
    """A server that this process did not start and will not end."""

    url: str

    def info(self) -> ServerInfo:
        """What it says of itself now. Raises ServerGone, ServerFault or BadAnswer."""
        return server_info(self.url)

    def alive(self) -> bool:
        """Does it answer and call itself healthy."""
        try:
            return answer(self.url, "/health")[0] == 200
        except ServerGone:
            return False


def attach(url: str) -> AttachedServer:
    """The server at `url`, e.g. http://127.0.0.1:30000, if an SGLang server answers there and is ready.

    Raises ServerGone (nothing listens), ServerFault (still loading, or ill), BadAnswer (not SGLang).
    """
    if "://" not in url:
        raise ValueError(f"server URL {url!r} needs its scheme: http://{url}")
    server = AttachedServer(url.rstrip("/"))
    server.info()
    status, _ = answer(server.url, "/health")
    if status != 200:
        raise ServerFault(f"{url} is still loading, or ill: /health answers {status}; try again later", server.url)
    return server


def server_info(url: str, timeout_s: float = TIMEOUT_S) -> ServerInfo:
    """Reads the server's own account. Raises ServerGone, ServerFault or BadAnswer."""
    arguments = _object(url, ("/server_info", "/get_server_info"), timeout_s)
    model = _object(url, ("/model_info", "/get_model_info"), timeout_s)
    if "model_path" not in arguments or "version" not in arguments:
        raise BadAnswer(f"{url} answers, but not as an SGLang server does: /server_info has no model_path", url)
    return parse_server_info(url, arguments, model)


def parse_server_info(url: str, arguments: Mapping[str, Any], model: Mapping[str, Any]) -> ServerInfo:
    """The answers of /server_info and /model_info as ServerInfo, whatever the release calls things."""
    get = arguments.get
    states = get("internal_states") or [{}]
    state = states[0] if isinstance(states, list) else states
    layer_ids = get("return_aux_hidden_state_layer_ids")
    architectures = model.get("architectures") or [""]
    return ServerInfo(
        url=url,
        version=str(get("version")),
        target=model.get("model_path") or get("model_path"),
        architecture=architectures[0],
        algorithm=get("speculative_algorithm"),
        num_steps=get("speculative_num_steps"),
        topk=get("speculative_eagle_topk"),
        num_draft_tokens=get("speculative_num_draft_tokens"),
        draft=get("speculative_draft_model_path"),
        dtype=get("dtype"),
        device=get("device"),
        context_length=get("context_length"),
        tp=get("tp_size"),
        max_running_requests=get("max_running_requests"),
        max_total_tokens=get("max_total_num_tokens") or get("max_total_tokens"),
        radix_cache=not get("disable_radix_cache", False),
        captures=bool(get("enable_return_aux_hidden_states")),
        layer_ids=list(layer_ids) if layer_ids else None,
        accept_length=state.get("avg_spec_accept_length"),
        launch_command=get("launch_command"),
        arguments=dict(arguments),
    )


def _object(url: str, paths: tuple[str, ...], timeout_s: float) -> dict[str, Any]:
    """The JSON object under the first path that this release has."""
    for path in paths:
        status, body = answer(url, path, timeout_s)
        if status != 404:
            break
    if status in (401, 403):
        raise BadAnswer(f"{url} asks for an API key: servers with one are not supported", url)
    if status >= 500:
        raise ServerFault(f"{url}{path} answers {status}: the server is still loading, or ill", url)
    try:
        found = json.loads(body) if status == 200 else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadAnswer(f"{url} is no SGLang server: {path} answers {status} {body[:60]!r}", url)
    return found
