"""A person signs in at the provider `oidc-provider` of npm, in Chromium (R24.7): `make test-clients`."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser, expect
from temporalio.testing import WorkflowEnvironment

from perdure.hosting.oidc import OidcConfig
from perdure.hosting.server import free_port
from perdure.pages.adapter import pages, sign_in
from tests.clients.test_clients import HERE, installed
from tests.gateway.support import gateway
from tests.support import CHROMIUM

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.clients,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
    pytest.mark.xdist_group("browser"),
]


async def test_a_person_signs_in_and_out(dev_server: WorkflowEnvironment, browser: Browser) -> None:
    installed("node")
    port = free_port()
    config = OidcConfig.model_validate(
        {
            "issuer": f"http://127.0.0.1:{port}",
            "client_id": "perdure",
            "client_secret": "secret-of-the-test",
            "label": "Example",
            "tenant": "org",
            "roles": "groups",
            "rights": {"finance": ["read", "approve"]},
        }
    )
    async with gateway(dev_server.client, [sign_in, pages], gateway_oidc=config) as it:
        words = ("node", "oidc.mjs", str(port), f"{it.address}/sign-in/callback")
        provider = await asyncio.create_subprocess_exec(*words, cwd=HERE, stdout=asyncio.subprocess.PIPE)
        assert provider.stdout is not None
        try:
            assert await provider.stdout.readline() == b"listens\n"
            context = await browser.new_context()
            page = await context.new_page()
            await page.goto(f"{it.address}/inbox/")
            await page.get_by_role("link", name="Sign in with Example").click()
            await page.locator("input[name=login]").fill("ann")
            await page.locator("input[name=password]").fill("any")
            await page.get_by_role("button", name="Sign-in").click()
            await page.get_by_role("button", name="Continue").click()
            await page.wait_for_url(f"{it.address}/inbox/")
            await expect(page.locator(".who")).to_contain_text("ann@example.com, tenant acme")
            await page.get_by_role("button", name="Sign out").click()
            await expect(page.get_by_role("link", name="Sign in with Example")).to_be_visible()
            await context.close()
        finally:
            provider.kill()
            await provider.wait()
