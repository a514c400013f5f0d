"""`client.webhooks`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from assay.client.resource import Group, segment
from assay.contracts.webhook import (
    CreatedWebhookBody,
    DeliveryBody,
    WebhookBody,
    WebhookRequest,
)


class Webhooks(Group):
    """Addresses that events are sent to."""

    path = "/v1/webhooks"

    def create(
        self,
        url: str,
        *,
        events: Sequence[str] | None = None,
        description: str | None = None,
    ) -> CreatedWebhookBody:
        """Have events sent to an address; by default all. The secret is in this answer alone.

        Raises:
            ValueError: the address or an event is wrong.
            Invalid: the service does not call this address.
            Conflict: there are too many webhooks.
        """
        asked: dict[str, Any] = {"url": url, "description": description}
        if events is not None:
            asked["events"] = list(events)
        body = WebhookRequest.model_validate(asked)
        response = self._http.request("POST", self.path, body=body)
        return CreatedWebhookBody.model_validate_json(response.content)

    def list(self) -> Iterator[WebhookBody]:
        """Webhooks, newest first."""
        return self._walk(WebhookBody, self.path, {})

    def get(self, webhook: str) -> WebhookBody:
        """A webhook."""
        return self._get(WebhookBody, self._at(webhook))

    def delete(self, webhook: str) -> None:
        """Delete a webhook. What has not been sent is not sent any more."""
        self._http.request("DELETE", self._at(webhook))

    def test(self, webhook: str) -> DeliveryBody:
        """Send a test, once; `delivery` says what came of it."""
        return self._post(f"{self._at(webhook)}/test")

    def deliveries(self, webhook: str) -> Iterator[DeliveryBody]:
        """What was sent and what waits, newest first."""
        return self._walk(DeliveryBody, f"{self._at(webhook)}/deliveries", {})

    def delivery(self, webhook: str, delivery: str) -> DeliveryBody:
        """A delivery."""
        return self._get(DeliveryBody, f"{self._at(webhook)}/deliveries/{segment(delivery)}")

    def retry(self, webhook: str, delivery: str) -> DeliveryBody:
        """Send a delivery again, now and under the same id."""
        return self._post(f"{self._at(webhook)}/deliveries/{segment(delivery)}/retry")

    def _at(self, webhook: str) -> str:
        return f"{self.path}/{segment(webhook)}"

    def _post(self, path: str) -> DeliveryBody:
        return DeliveryBody.model_validate_json(self._http.request("POST", path).content)
