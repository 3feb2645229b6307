"""Makes the README's pictures anew: the demo's run in the Web UI, by headless Chromium.

make picture
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from asyncio.subprocess import PIPE
from pathlib import Path

from playwright.async_api import async_playwright

from perdure.demo.script import FIRST
from scripts.waiting_demo import waiting_demo

DOCS = Path(__file__).parents[1] / "docs"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=15000",
]


def main() -> int:
    """Run the demo with its Web UI kept up, photograph it, and end it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("no Chromium on the PATH: install the package 'chromium'", file=sys.stderr)
        return 1
    demo = subprocess.Popen(
        [sys.executable, "client.py", "demo", "--yes", "--stay"], stdout=subprocess.PIPE, text=True, cwd=DOCS.parent
    )
    try:
        address, page = "", ""
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("Web UI"):
                address = line.split()[-1]
            if line.startswith("Its page"):
                page = line.split()[-1]
            if "stay up" in line:
                break
        photograph(chromium, page, DOCS / "run-page.png", "1180,1060")
        photograph(chromium, f"{address}/timeline", DOCS / "web-ui-timeline.png", "1400,1250")
        photograph(chromium, f"{address}/user-metadata", DOCS / "web-ui-details.png", "1400,1000")
        draw_plan()
        asyncio.run(photograph_inbox(chromium, DOCS / "inbox.png"))
    finally:
        demo.terminate()
        demo.wait(10)
    return 0


def draw_plan() -> None:
    """The demo's first plan as a drawing, had all its calls gone well."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        plan.write_text(json.dumps(FIRST), encoding="utf-8")
        target = DOCS / "plan.svg"
        run_input = json.dumps({"folder": "/data"})
        command = [
            "plan",
            "draw",
            str(plan),
            "--input",
            run_input,
            "--assume",
            "1.0=†state.before",
            "--svg",
            str(target),
        ]
        subprocess.run([sys.executable, "client.py", *command], check=True, cwd=DOCS.parent)


async def photograph_inbox(chromium: str, target: Path) -> None:
    """The page on which people decide, with the demo's dangerous call waiting."""
    async with waiting_demo("disk-full") as (server, handle):
        env = {**os.environ, "TEMPORAL_ADDRESS": server.client.service_client.config.target_host}
        inbox = await asyncio.create_subprocess_exec(
            *(sys.executable, "client.py", "inbox", "--port", "0"), env=env, cwd=DOCS.parent, stderr=PIPE
        )
        assert inbox.stderr is not None
        address = (await inbox.stderr.readline()).decode().split()[1].rstrip(";")
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = await browser.new_page(viewport={"width": 1280, "height": 960})
            await page.goto(address)
            await page.get_by_role("heading", name="clean logs").wait_for(timeout=20_000)
            await page.screenshot(path=target)
            await browser.close()
        inbox.terminate()
        await inbox.wait()
        await handle.cancel()
    print(target.name)


def photograph(chromium: str, address: str, target: Path, size: str) -> None:
    """One page as a PNG, with a browser profile of its own."""
    with tempfile.TemporaryDirectory() as profile:
        command = [
            chromium,
            *FLAGS,
            f"--user-data-dir={profile}",
            f"--window-size={size}",
            f"--screenshot={target}",
            address,
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=90)
    print(f"{target.name}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    raise SystemExit(main())
