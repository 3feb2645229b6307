"""Who uses the gateway in `benchmarks/load.py`: readers of event streams, and writers of messages. Locust runs it, in an environment of its own."""

import itertools
import json
import os
from pathlib import Path

import gevent
from locust import FastHttpUser, constant_throughput, task

PLAN = json.loads(os.environ["PERDURE_LOAD"])
"""`tokens`, `sessions`, `readers`, `writers`, `rate` (messages a second, of all), `seconds`, `idle` (seconds of silence first), `folder`."""
FOLDER = Path(PLAN["folder"])
READERS, WRITERS = itertools.count(), itertools.count()
MESSAGES = itertools.count()
RECEIPTS = (FOLDER / "receipts.jsonl").open("w", buffering=1)
COUNTED = {"open": 0, "events": 0, "told": 0, "broken": 0, "done": 0}


def session_of(number: int) -> tuple[str, dict[str, str]]:
    """A session's path, and whose it is."""
    number %= PLAN["sessions"]
    token = PLAN["tokens"][number % len(PLAN["tokens"])]
    return f"/v1/sessions/load-{number}", {"Authorization": f"Bearer {token}"}


def say(what: str) -> None:
    """Where it stands, for who measures: a file's name."""
    (FOLDER / what).write_text(json.dumps(COUNTED))


class Reader(FastHttpUser):
    """Keeps one event stream open, and counts what comes, and of which messages it is told."""

    fixed_count = PLAN["readers"]
    network_timeout = connection_timeout = 600

    @task
    def read(self) -> None:
        path, headers = session_of(next(READERS))
        with self.client.get(f"{path}/events?from=now", headers=headers, stream=True, name="events") as answer:
            if answer.status_code != 200:
                COUNTED["broken"] += 1
                gevent.sleep(600)
            COUNTED["open"] += 1
            if COUNTED["open"] == PLAN["readers"]:
                say("open")
            seen: set[str] = set()
            while line := answer.stream.readline(b"\n"):
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    COUNTED["events"] += 1
                    if event["topic"] == "message":
                        COUNTED["told"] += event["data"]["messageId"] not in seen
                        seen.add(event["data"]["messageId"])
        COUNTED["broken"] += 1


class Writer(FastHttpUser):
    """Says something at its rate, for so long, once every stream is open; keeps each receipt."""

    fixed_count = PLAN["writers"]
    wait_time = constant_throughput(PLAN["rate"] / PLAN["writers"])

    def on_start(self) -> None:
        while COUNTED["open"] < PLAN["readers"]:
            gevent.sleep(0.1)
        gevent.sleep(PLAN["idle"])
        self.left = PLAN["seconds"] * PLAN["rate"] // PLAN["writers"]

    @task
    def write(self) -> None:
        if self.left == 0:
            self.end()
        self.left -= 1
        number = next(MESSAGES)
        path, headers = session_of(number)
        body = {"text": f"message {number}", "messageId": f"m-{number}", "mode": "collect", "agent": "talk"}
        with self.client.post(
            f"{path}/messages", json=body, headers=headers, name="messages", catch_response=True
        ) as it:
            if it.status_code == 202:
                RECEIPTS.write(json.dumps([path.rpartition("/")[2], it.json()["messageId"]]) + "\n")
            else:
                it.failure(f"{it.status_code} {it.text[:200]}")

    def end(self) -> None:
        COUNTED["done"] += 1
        if COUNTED["done"] == PLAN["writers"]:
            say("sent")
            gevent.sleep(PLAN["idle"])
            say("read")
            gevent.spawn(self.environment.runner.quit)
        gevent.sleep(600)
