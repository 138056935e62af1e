"""A server on loopback from which tests download, as well or as badly as it is told."""

import http.server
import threading
from contextlib import contextmanager


class Server:
    """Serves pages: contents by path, or in place of one a status."""

    def __init__(self, pages):
        self.pages, self.asked = pages, []  # asked for: paths, and after a space the range
        self.ranges, self.cut_off_at = True, None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer._answer(self)

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/"

    def _answer(self, handler):
        path, wanted = handler.path.removeprefix("/"), handler.headers.get("Range")
        self.asked.append(f"{path} {wanted}" if wanted else path)
        page, first = self.pages[path], 0
        status, content = (200, page) if isinstance(page, bytes) else (page, b"a page that says why")
        if wanted and self.ranges and status == 200:
            first = int(wanted.removeprefix("bytes=").removesuffix("-"))
            status = 206 if first < len(content) else 416
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content[first:])))
        handler.end_headers()
        handler.wfile.write(content[first : self.cut_off_at])


@contextmanager
def serving(pages):
    """Serve pages meanwhile."""
    server = Server(pages)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        thread.join()
        server.http.server_close()
