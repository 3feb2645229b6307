"""Makes the README's pictures anew: the demo's run on its page, in the Web UI and in the inbox, by headless Chromium.

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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

from playwright.async_api import Browser, FloatRect, Page, async_playwright

from perdure.demo.scenario import FIRST
from scripts.waiting_demo import waiting_demo

DOCS = Path(__file__).parents[1] / "docs"
WIDE = "main { max-width: none !important; }"
"""The pages are as wide as the picture, so that no plan is scrolled."""
FITTED = WIDE + ".plan svg { max-width: 100%; height: auto; }"
"""The plan is as wide as its box at most."""
Scheme = Literal["light", "dark"]
SCHEMES: Final[tuple[Scheme, ...]] = ("light", "dark")


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
        asyncio.run(photograph_demo(chromium, page, address))
        draw_plan()
        asyncio.run(photograph_inbox(chromium))
    finally:
        demo.terminate()
        demo.wait(10)
    return 0


def draw_plan() -> None:
    """The demo's first plan as a drawing, before anything runs."""
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
            "--svg",
            str(target),
        ]
        subprocess.run([sys.executable, "client.py", *command], check=True, cwd=DOCS.parent)


async def photograph_demo(chromium: str, page: str, address: str) -> None:
    """The ended run: on its page, light and dark, and in Temporal's Web UI."""
    async with browser(chromium) as opened:
        for scheme in SCHEMES:
            shown = await opened.new_page(viewport={"width": 1330, "height": 700}, color_scheme=scheme, bypass_csp=True)
            await shown.goto(page)
            await shown.get_by_role("heading", name="Plan").wait_for()
            await shown.add_style_tag(content=WIDE)
            after = await shown.locator("h2:has-text('Calls') ~ h2").first.bounding_box()
            assert after is not None
            await save(
                shown, "run-page" + suffix(scheme), clip={"x": 0, "y": 0, "width": 1330, "height": after["y"] - 8}
            )
        shown = await opened.new_page(viewport={"width": 1500, "height": 1480})
        await shown.goto(f"{address}/timeline")
        await shown.get_by_text("first Request").first.wait_for()
        await shown.wait_for_load_state("networkidle")
        title = await shown.get_by_role("heading", name="Timeline").bounding_box()
        assert title is not None
        x, y = title["x"] - 8, title["y"] - 8
        await save(shown, "web-ui-timeline", clip={"x": x, "y": y, "width": 1490 - x, "height": 1480 - y})
        shown = await opened.new_page(viewport={"width": 2320, "height": 1000})
        await shown.goto(f"{address}/user-metadata")
        title = await shown.get_by_role("heading", name="Current Details").bounding_box()
        await shown.wait_for_load_state("networkidle")
        assert title is not None
        x, y = title["x"] - 16, title["y"] - 8
        await save(shown, "web-ui-details", clip={"x": x, "y": y, "width": 1000, "height": 600})


async def photograph_inbox(chromium: str) -> None:
    """The page on which people decide, with the demo's dangerous call waiting, light and dark."""
    async with waiting_demo("disk-full") as (server, handle):
        env = {**os.environ, "TEMPORAL_ADDRESS": server.client.service_client.config.target_host}
        inbox = await asyncio.create_subprocess_exec(
            *(sys.executable, "client.py", "inbox", "--port", "0"), env=env, cwd=DOCS.parent, stderr=PIPE
        )
        assert inbox.stderr is not None
        address = (await inbox.stderr.readline()).decode().split()[1].rstrip(";")
        async with browser(chromium) as opened:
            for scheme in SCHEMES:
                page = await opened.new_page(
                    viewport={"width": 1100, "height": 700}, color_scheme=scheme, bypass_csp=True
                )
                await page.goto(address)
                await page.get_by_role("heading", name="clean logs").wait_for(timeout=20_000)
                await page.add_style_tag(content=FITTED)
                await save(page, "inbox" + suffix(scheme))
        inbox.terminate()
        await inbox.wait()
        await handle.cancel()


def suffix(scheme: Scheme) -> str:
    """Return the end of a picture's name: dark ones are `NAME-dark.png`."""
    return "-dark" if scheme == "dark" else ""


@asynccontextmanager
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """A headless Chromium that ends with the context."""
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        await opened.close()


async def save(page: Page, name: str, clip: FloatRect | None = None) -> None:
    """The whole page as a PNG, however long it is, or the part of it in `clip`."""
    target = DOCS / f"{name}.png"
    await page.screenshot(path=target, full_page=True, clip=clip)
    print(f"{target.name}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    raise SystemExit(main())
