"""A stand-in for a server's process: it listens, gets ready, dies, ignores signals, has children, as its arguments say.

python stand_in.py PORT [behaviour ...]
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOADING_S = 0.5


def main(port: int, behaviour: set[str]) -> None:
    print("server started with", sorted(behaviour), flush=True)
    started = time.monotonic()
    if "dies" in behaviour:
        print("RuntimeError: out of memory", flush=True)
        sys.exit(3)
    if "dies by signal" in behaviour:
        os.kill(os.getpid(), signal.SIGKILL)
    if "ignores SIGTERM" in behaviour:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
    if "has a child" in behaviour:
        subprocess.Popen(sleep)
    if "has a child in a session of its own" in behaviour:
        subprocess.Popen(sleep, start_new_session=True)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            loading = "never ready" in behaviour or time.monotonic() < started + LOADING_S
            if self.path == "/health":
                self.answer(503 if loading else 200, b"")
            elif self.path == "/environment":
                self.answer(200, json.dumps(dict(os.environ)).encode())
            else:
                self.answer(404, b"")

        def answer(self, status, body):
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    if "never listens" in behaviour:
        threading.Event().wait()
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), set(sys.argv[2:]))
