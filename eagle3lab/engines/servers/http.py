"""One GET of a server, by the standard library alone: watching a server costs no other import."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from eagle3lab.engines.servers.errors import BadAnswer, ServerGone

TIMEOUT_S = 30.0


def answer(url: str, path: str, timeout_s: float = TIMEOUT_S) -> tuple[int, bytes]:
    """(status, body) of a GET. Raises ServerGone when nothing answers in time. No proxy for this machine itself."""
    local = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))
    try:
        with opener.open(url + path, timeout=timeout_s) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ConnectionRefusedError):
            reason = "nothing listens there; a server that loads its weights does not listen yet either"
        raise ServerGone(f"{url} does not answer: {reason}", url) from error
    except (ValueError, http.client.HTTPException) as error:
        raise BadAnswer(f"{url}{path} does not speak HTTP ({error!r}): this is no server of an engine", url) from error
