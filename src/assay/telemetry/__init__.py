"""How the services say what they do: log lines with ids, and counts.

`logs` needs structlog alone, so that workers can use it; `counts` needs prometheus-client.
"""

from assay.telemetry.logs import LogSettings, bind, configure_logging

__all__ = ["LogSettings", "bind", "configure_logging"]
