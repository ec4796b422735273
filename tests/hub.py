"""A model hub on this machine: what the real client asks for when it downloads a repository, answered from folders."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

from huggingface_hub import constants

LARGE = 1000  # bytes from which a file is kept by its sha256, as a hub keeps weights; smaller ones by git's sha1


class Hub:
    """Serves `repos` (OWNER/NAME -> folder). `requests`: paths that were asked for. `damaged`: names of files of which
    other bytes of the same length are sent."""

    def __init__(self, repos: dict[str, Path]):
        self.repos, self.requests, self.damaged = dict(repos), [], set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self._answer(*hub.answer(urlsplit(self.path).path))

            do_HEAD = do_GET

            def _answer(self, status: int, headers: dict, body: bytes):
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str) -> tuple[int, dict, bytes]:
        self.requests.append(path)
        for name, folder in self.repos.items():
            commit = hashlib.sha1(name.encode()).hexdigest()
            files = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
            if path in (f"/api/models/{name}", f"/api/models/{name}/revision/main"):
                siblings = [{"rfilename": file} for file in files]
                return _json({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": []})
            if path.startswith(f"/api/models/{name}/tree/"):
                return _json([_listed(file, content.read_bytes()) for file, content in files.items()])
            start = f"/{name}/resolve/{commit}/"
            if path.startswith(start) and (file := unquote(path.removeprefix(start))) in files:
                content = files[file].read_bytes()
                headers = {"ETag": f'"{_digest(content)}"', "X-Repo-Commit": commit}
                return 200, headers, bytes(len(content)) if file in self.damaged else content
        return 404, {"X-Error-Code": "RepoNotFound"}, b""


def _json(value) -> tuple[int, dict, bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _digest(content: bytes) -> str:
    if len(content) >= LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _listed(name: str, content: bytes) -> dict:
    listed = {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
    if len(content) >= LARGE:
        return listed | {"lfs": {"oid": _digest(content), "size": len(content), "pointerSize": 130}}
    return listed | {"oid": _digest(content)}


@contextmanager
def only_hub(repos: dict[str, Path], monkeypatch, home: Path) -> Iterator[Hub]:
    """A hub that the client, in this process and those it starts, takes for the only one; with a cache of its own."""
    hub, cache = Hub(repos), home / "hub"
    for name, value in {
        "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "0",
        "TRANSFORMERS_OFFLINE": "0",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    try:
        yield hub
    finally:
        hub.close()
