"""The plain way to bring a file to another process: `python -m benchmarks.loopback_server`, which prints its port.

Who connects sends a path and a line end, and gets the bytes, which the system copies from the file to the connection.
It ends with its standard input.
"""

from __future__ import annotations

import socket
import sys
import threading


def main() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)
    threading.Thread(target=_serve, args=[server], daemon=True).start()
    sys.stdin.read()


def _serve(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_send, args=[connection], daemon=True).start()


def _send(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as asked, open(asked.readline().decode().strip(), "rb") as file:
        connection.sendfile(file)


if __name__ == "__main__":
    main()
