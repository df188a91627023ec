"""A real browser, signed in to the running Airflow."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.stack import IntegrationStack

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SECONDS = 60


@pytest.fixture
def page(stack: IntegrationStack) -> Iterator[Page]:
    """A page of Chromium, signed in as admin. Without Chromium CI fails and others skip."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        if os.environ.get("CI"):
            pytest.fail("no chromium on PATH: .ci/run installs it")
        pytest.skip("no chromium on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1500, "height": 1000})
        page.set_default_timeout(SECONDS * 1000)
        page.goto(stack.airflow_url)
        page.fill("input[name=username]", "admin")
        page.fill("input[name=password]", stack.secrets.admin_password)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(lambda url: "login" not in url)
        leave(page)
        yield page
        browser.close()


def leave(page: Page) -> None:
    """Go to an empty page, for as long as a run takes: Airflow's own asks and paints all the time, and takes
    the run half of a processor."""
    page.goto("about:blank")
