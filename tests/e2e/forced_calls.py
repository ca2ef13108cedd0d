"""A server in front of an engine that changes requests on their way: for clients that let the model choose its tools, which a
small model does not use by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

ENGINE_TIMEOUT_S = 120.0
OWN_HEADERS = {"host", "connection", "content-length", "transfer-encoding"}  # of each of the two connections


@contextmanager
def forcing(engine_url: str, path: str, change: Callable[[bytes], bytes]) -> Iterator[str]:
    """Forward everything to the engine, the bodies of POSTs to `path` as `change` returns them. Yields the URL."""
    engine = urlsplit(engine_url).netloc

    class Forwarder(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._forward(None)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self._forward(change(body) if self.path == path else body)

        def _forward(self, body: bytes | None) -> None:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in OWN_HEADERS}
            with closing(HTTPConnection(engine, timeout=ENGINE_TIMEOUT_S)) as connection:
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                self.send_response(answer.status)
                self.send_header("content-type", answer.headers.get("content-type", "text/plain"))
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                while piece := answer.read1(2**16):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            """Not on standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Forwarder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
