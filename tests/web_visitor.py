"""A visitor of the web page, in memory, for tests of its API."""

from typing import Any

from tests.asgi_client import Answer, Client
from tests.fake_web_pool import FakePool

from gpupool.monitoring.web.gate import LocalGate
from gpupool.monitoring.web.page_app import make_app

PORT = 7471


class Page:
    """A browser without a screen: it has a cookie, the orders' secret, and its own origin."""

    def __init__(self, pool: FakePool, *, readonly: bool = False) -> None:
        self.pool = pool
        self.gate = LocalGate(pool, PORT)
        self.secret = ""
        self.client = Client(make_app(self.gate, readonly=readonly), f"127.0.0.1:{PORT}")

    async def enter(self) -> Answer:
        """Exchange a new key."""
        key = self.gate.new_key()
        answer = await self.client.post("/api/v1/login", json_body={"key": key})
        self.secret = answer.json()["secret"]
        return answer

    async def get(self, path: str) -> Any:
        """Return the API's answer."""
        answer = await self.client.get(f"/api/v1/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def order(self, path: str, **body: object) -> Answer:
        """Give an order as the page does."""
        headers = {"x-gpupool": self.secret, "origin": f"http://127.0.0.1:{PORT}"}
        return await self.client.post(f"/api/v1/{path}", json_body=body, headers=headers)
