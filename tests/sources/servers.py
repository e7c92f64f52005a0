"""Servers on this machine that send video in the ways network cameras and web sites do."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import av


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[int]:
    """Runs a server and gives its port."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def web_server(body: bytes, content_type: str, *, ranges: bool = True) -> ThreadingHTTPServer:
    """Serves /clip, whole or in ranges; everything else is not found."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path != "/clip":
                self.send_error(404)
                return
            first = 0
            asked = self.headers.get("Range") if ranges else None
            if asked is not None:
                first = int(asked.removeprefix("bytes=").split("-")[0])
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            self.send_header("Accept-Ranges", "bytes" if ranges else "none")
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body) - first))
            self.end_headers()
            self.wfile.write(body[first:])

        def log_message(self, *_: object) -> None:
            """Keeps the test's output clean."""

        def handle(self) -> None:
            with suppress(ConnectionError):  # of a reader that has seen enough
                super().handle()

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def motion_jpeg(pictures: list[bytes]) -> tuple[bytes, str]:
    """Body and content type of what a web camera sends: one JPEG after the other."""
    parts = (
        b"--next\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%s\r\n" % (len(picture), picture)
        for picture in pictures
    )
    return b"".join(parts), "multipart/x-mixed-replace;boundary=next"


def rtsp_server(path: Path) -> socketserver.ThreadingTCPServer:
    """Sends the H.264 frames of a raw stream over RTP inside the RTSP connection, then hangs up."""
    with av.open(str(path)) as container:
        frames = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    description = (
        "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=clip\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\n"
        "m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n"
        "a=fmtp:96 packetization-mode=1\r\na=control:track\r\n"
    )
    answers = {
        "OPTIONS": "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\n\r\n",
        "DESCRIBE": f"Content-Type: application/sdp\r\nContent-Length: {len(description)}\r\n\r\n"
        + description,
        "SETUP": "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 1\r\n\r\n",
        "PLAY": "Session: 1\r\nRange: npt=0.000-\r\n\r\n",
    }

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while request := self.rfile.readline().decode():
                headers = list(iter(lambda: self.rfile.readline().decode().strip(), ""))
                sequence = next(line for line in headers if line.startswith("CSeq"))
                method = request.split()[0]
                answer = answers.get(method, "\r\n")
                self.wfile.write(f"RTSP/1.0 200 OK\r\n{sequence}\r\n{answer}".encode())
                if method == "PLAY":
                    self.wfile.writelines(_rtp_packets(frames))
                    return

    return socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)


def _rtp_packets(frames: list[bytes]) -> Iterator[bytes]:
    sequence = 0
    for number, frame in enumerate(frames):
        units = [unit.rstrip(b"\0") for unit in frame.split(b"\0\0\1") if unit.rstrip(b"\0")]
        for unit in units:
            marker = 0x80 if unit is units[-1] else 0
            packet = struct.pack("!BBHII", 0x80, marker | 96, sequence, 3600 * number, 1) + unit
            yield struct.pack("!cBH", b"$", 0, len(packet)) + packet
            sequence += 1
