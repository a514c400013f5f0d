"""Where a number comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.contracts.worker import AttemptSpec
from assay.domain.hashing import derive_seed
from services.worker.host import Host


def facts_of(host: Host, spec: AttemptSpec) -> dict[str, Any]:
    """Where a number comes from, as far as it is known before anything has started."""
    return {
        "codebase": spec.codebase,
        "environment": spec.environment,
        "bundle": spec.bundle,
        "profile": spec.profile,
        "seed": spec.seed,
        "evaluation_seed": derive_seed(spec.seed, "evaluation"),
        "sandbox": host.sandbox.name,
        "isolated": host.isolated,
        "guarantees": host.guarantees,
        **{f"sandbox_{name}": value for name, value in host.sandbox_facts.items()},
        "assay": host.info["assay"],
        "hardware_class": host.hardware_class,
        "cpu_model": host.cpu.model,
        "python": host.info["python"],
        "torch": host.info["torch"],
        "numpy": host.info["numpy"],
        "evaluation": host.info["evaluation"],
        # Environments may sample with it: another version gives other numbers.
        **({"vllm": vllm} if (vllm := host.info["packages"].get("vllm")) else {}),
        "worker": host.settings.name,
        "host": host.info["host"],
    }


def data_facts(host: Host, data: Path) -> dict[str, Any]:
    """Hashes of the prepared splits: what is trained on (start weights included) and scored on."""
    return {
        "held_out_key": bool(host.settings.held_out_key.get_secret_value()),
        "train": host.bundles.fingerprint(data / "train"),
        "held_out": host.bundles.fingerprint(data / "search"),
        "sealed": host.bundles.fingerprint(data / "sealed"),
    }
