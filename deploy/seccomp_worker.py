"""Writes seccomp-worker.json: the system calls of the container a worker runs in.

The worker is trusted, and starts programs that nobody recorded (mkfs, mount, GPU tools). So calls
are allowed here unless a sandbox refuses them (`assay.sandbox.seccomp.refusals`), less what
bubblewrap itself needs to make one (new namespaces, and mounts inside them), and less what is
refused only because sandboxes share files: the worker locks files. Every program in a
sandbox gets the sandbox's own filter on top, which allows only what is listed. Run it with the
project's interpreter after a change of the refused calls.
"""

import json
import sys
from pathlib import Path
from typing import Any

from assay.sandbox import seccomp

FOR_BUBBLEWRAP = {"unshare", "mount", "umount2", "pivot_root", "sethostname"}
MACHINES = ("x86_64", "aarch64")
FILE = Path(__file__).with_name("seccomp-worker.json")


def worker_profile() -> dict[str, Any]:
    """The profile in the words of container engines, for every machine there is a list for."""
    rules: dict[str, Any] = {}
    for machine in MACHINES:
        for rule in seccomp.refusals(machine, shares_files=True):
            wanted = _without_bubblewraps(rule)
            if wanted is None:
                continue
            key = json.dumps({**wanted, "names": []} if not wanted["args"] else wanted)
            if key in rules:
                names = [*rules[key]["names"], *wanted["names"]]
                wanted = {**wanted, "names": list(dict.fromkeys(names))}
            rules[key] = wanted
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        # The engine takes the entry of its own machine.
        "archMap": [
            {"architecture": f"SCMP_ARCH_{machine.upper()}", "subArchitectures": []}
            for machine in MACHINES
        ],
        "syscalls": list(rules.values()),
    }


def _without_bubblewraps(rule: dict[str, Any]) -> dict[str, Any] | None:
    if rule["names"] == ["clone"]:  # refused for its namespaces only
        return None
    names = [name for name in rule["names"] if name not in FOR_BUBBLEWRAP]
    return {**rule, "names": names} if names else None


if __name__ == "__main__":
    FILE.write_text(json.dumps(worker_profile(), indent=1) + "\n")
    sys.stdout.write(f"{FILE}\n")
