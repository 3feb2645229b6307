"""A light process that stands for a forked command: the command has its three files, gets its signals, and gives it its exit code.

`python -I -S forked_client.py SOCKET PROGRAM WORD…` starts in 0.03 s of CPU time, where `python client.py WORD…` takes a second.
"""

import json
import os
import signal
import socket
import sys


def main(path: str, program: str, argv: list[str]) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    text = json.dumps({"program": program, "argv": argv, "env": dict(os.environ), "cwd": os.getcwd()}).encode()
    socket.send_fds(connection, [len(text).to_bytes(8)], [0, 1, 2])
    connection.sendall(text)
    with connection.makefile("rb") as answers:
        command = int(answers.readline())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGWINCH):
            signal.signal(number, lambda number, _: os.kill(command, number))
        code = int(answers.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
