"""A small process that speaks llama.cpp's server protocol, in the place of the program that runs an embedded model.

The "weights" are GGUF's four letters and then JSON:

    decisions: [text, …]   what answers requests with a response_format, in order; then `[{"tool":"reply"}]`
    prose: [text, …]       what answers the others, in order, word by word; then "Hello from the peer."
    pause: seconds         between words
    load: seconds          before it is ready
    dies_after: n          the process ends after so many words of the first prose, once; FILE.died is the mark
    fails: text            it prints this and ends at once
    chats: text            it prints this before it is ready

Every request for an answer is a line in `FILE.requests`. When a client disconnects during an answer, `FILE.gone` is
written.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

USAGE = {
    "prompt_tokens": 70, "completion_tokens": 4, "total_tokens": 74, "prompt_tokens_details": {"cached_tokens": 60}
}  # fmt: skip
PROGRAM = (sys.executable, str(Path(__file__)))


def main() -> None:
    model, *_ = sys.argv[1:]
    file = Path(model)
    script = json.loads(file.read_bytes()[4:])
    if "fails" in script:
        sys.exit(script["fails"])
    print(script.get("chats", ""))
    time.sleep(script.get("load", 0))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(file, script))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"serving at http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.buffer.read()
    os._exit(0)


def _handler(file: Path, script: dict[str, Any]) -> type[BaseHTTPRequestHandler]:
    decisions, prose = iter(script.get("decisions", ())), iter(script.get("prose", ()))
    mark = file.with_suffix(".died")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Authorization") != f"Bearer {os.environ['EMBEDDED_MODEL_KEY']}":
                self.send_error(401)
                return
            with Path(f"{file}.requests").open("ab") as log:
                log.write(body + b"\n")
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                self._answer(json.loads(body))
            except OSError:
                Path(f"{file}.gone").write_text("gone")

        def _answer(self, request: dict[str, Any]) -> None:
            if "response_format" in request:
                words = [next(decisions, '[{"tool":"reply"}]')]
            elif request.get("max_tokens") == 1:
                words = ["."]  # the warm-up
            else:
                words = next(prose, "Hello from the peer.").split(" ")
            for number, word in enumerate(words):
                if number and number == script.get("dies_after") and not mark.exists():
                    mark.touch()
                    os._exit(1)
                if number:
                    time.sleep(script.get("pause", 0))
                self._event({"delta": {"content": f" {word}" if number else word}, "finish_reason": None})
            self._event({"delta": {}, "finish_reason": "stop"})
            if request.get("stream_options", {}).get("include_usage"):
                self._chunk({"choices": [], "usage": USAGE})
            self.wfile.write(b"data: [DONE]\n\n")

        def _event(self, choice: dict[str, Any]) -> None:
            self._chunk({"choices": [{"index": 0, **choice}]})

        def _chunk(self, fields: dict[str, Any]) -> None:
            chunk = {"object": "chat.completion.chunk", **fields}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None: ...

    return Handler


if __name__ == "__main__":
    main()
