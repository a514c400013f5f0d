"""A local HTTP server that answers with scripted responses and keeps what it was asked."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """One scripted answer; `drop` closes the connection without one."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False


@dataclass
class Script:
    """What the server will say (in order) and what it heard."""

    url: str
    replies: list[Reply]
    paths: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextlib.contextmanager
def serve(*replies: Reply) -> Iterator[Script]:
    """Serve the replies, one per request, on a free local port."""
    script = Script("", list(replies))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers["content-length"])
            script.requests.append(json.loads(self.rfile.read(size)))
            script.paths.append(self.path)
            script.headers.append({k.lower(): v for k, v in self.headers.items()})
            reply = script.replies.pop(0)
            if reply.drop:
                self.close_connection = True
                return
            text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
            data = text.encode()
            self.send_response(reply.status)
            for name, value in {"content-type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
