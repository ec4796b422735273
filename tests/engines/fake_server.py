"""A stand-in for a server's HTTP side: what it answers, and how it fails, is a function of the test.

Only for what a real server cannot be made to do on demand. What a real one answers is tested in tests/sglang.
"""

import json
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Reset:
    """Cuts the connection with a TCP reset, after `sent` bytes of a promised body of 1,000."""

    def __init__(self, sent=None):
        self.sent = sent


class Status:
    def __init__(self, code, text="", body=None):
        self.code, self.body = code, json.dumps({"error": {"message": text}}) if body is None else body


class Stream:
    """Server-sent events; `end=False` closes the connection without the last one."""

    def __init__(self, events, end=True):
        self.events, self.end = events, end


class FakeServer:
    """`reply(body, attempt)` gives the JSON of an answer, or one of the classes above; `attempt` counts the requests
    with the same prompt from 0. Attributes: bodies (all requests), most (requests served at the same time)."""

    def __init__(self, reply):
        self.reply, self.bodies, self.most = reply, [], 0
        self._attempts, self._now, self._lock = {}, 0, threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.head(200, 0)  # /health

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with outer._lock:
                    key = str(body.get("input_ids") or body["prompt"])
                    attempt = outer._attempts[key] = outer._attempts.get(key, -1) + 1
                    outer.bodies.append({**body, "headers": dict(self.headers)})
                    outer._now += 1
                    outer.most = max(outer.most, outer._now)
                try:
                    answer = outer.reply(body, attempt)
                finally:
                    with outer._lock:
                        outer._now -= 1
                self.send(answer)

            def send(self, answer):
                if isinstance(answer, Reset):
                    if answer.sent is not None:
                        self.head(200, 1000)
                        self.wfile.write(b"x" * answer.sent)
                        self.wfile.flush()
                        time.sleep(0.05)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.close_connection = True
                    self.connection.close()
                elif isinstance(answer, Stream):
                    parts = [f"data: {json.dumps(event)}\n\n" for event in answer.events]
                    whole = "".join(parts + (["data: [DONE]\n\n"] if answer.end else [])).encode()
                    self.head(200, len(whole), "text/event-stream")
                    self.wfile.write(whole)
                else:
                    status = answer if isinstance(answer, Status) else Status(200, body=json.dumps(answer))
                    self.head(status.code, len(status.body.encode()))
                    self.wfile.write(status.body.encode())

            def head(self, code, length, kind="application/json"):
                self.send_response(code)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(length))
                self.end_headers()

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *args):
                pass  # a connection the test or the client cut

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *failure):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def answer(ids, kind="length", matched=None, **meta):
    """What /generate of release 0.5.23 gives for these output ids."""
    reason = {"type": kind, "length": len(ids)} if kind == "length" else {"type": kind, "matched": matched}
    return {
        "text": "",
        "output_ids": ids,
        "meta_info": {"finish_reason": reason, "completion_tokens": len(ids), **meta},
    }


def echo(body, attempt=0):
    """Answers with the prompt's first token, repeated up to max_new_tokens."""
    return answer([body["input_ids"][0]] * body["sampling_params"]["max_new_tokens"])


def partial(ids, so_far=None):
    """An event of a stream that goes on; `ids` what it carries, `so_far` tokens written until then."""
    return {"output_ids": ids, "meta_info": {"finish_reason": None, "completion_tokens": so_far or len(ids)}}
