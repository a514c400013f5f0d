"""A Python client of the Assay API.

from assay.client import Client

with Client() as client:
    batch = client.batches.create(request)
    batch = client.batches.wait(batch.id, timeout=600)
    for experiment in client.experiments.list(batch=batch.id):
        print(experiment.idea.text, experiment.metric)
"""

from assay.client.api import Client
from assay.client.errors import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    BadRequest,
    ClientError,
    Conflict,
    Invalid,
    NotFound,
    RateLimited,
    ServerFault,
    Unauthorized,
    WaitTimeout,
)
from assay.client.experiments import LogText
from assay.client.outage import Patience
from assay.domain.webhooks import WrongSignature
from assay.domain.webhooks import verify as verify_webhook

__all__ = [
    "APIConnectionError",
    "APIStatusError",
    "APITimeoutError",
    "BadRequest",
    "Client",
    "ClientError",
    "Conflict",
    "Invalid",
    "LogText",
    "NotFound",
    "Patience",
    "RateLimited",
    "ServerFault",
    "Unauthorized",
    "WaitTimeout",
    "WrongSignature",
    "verify_webhook",
]
