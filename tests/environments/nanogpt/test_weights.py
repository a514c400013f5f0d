"""Eight steps of `tiny` on the public text leave the stored weights, bit for bit.

`weights.json` has the SHA-256 by hardware class, maker of the processor and version of torch: the
same instructions left other bits on Intel's than on AMD's. Whatever changes the training, the text
or the order of seeds changes it: then say so in CHANGELOG.md, measure the baseline again, and
store what the test prints.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from services.worker.hardware import hardware_class, read_cpu
from tests.environments.conftest import Bundled, TrainMany, Tree
from tests.support.needs import missing

pytestmark = pytest.mark.slow

STORED = json.loads(Path(__file__).with_name("weights.json").read_text())
TOKENS = 8 * 16 * 64

# With these a machine computes as one that has nothing newer than AVX2: they limit torch's
# own kernels, oneDNN and MKL.
PLAIN = {
    "ASSAY_HARDWARE_CLASS": "cpu-avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "AVX2",
}


def maker() -> str:
    """The maker of this processor as the kernel calls it, such as GenuineIntel."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id"))
    return next(found, "")


def check(train_many: TrainMany, files: Tree, variables: dict[str, str]) -> None:
    """Train, and compare with what is stored for this class."""
    (trained,) = train_many({"baseline": files}, TOKENS, variables=variables).values()
    assert trained.error is None, trained.error
    kind, version = (
        f"{variables['ASSAY_HARDWARE_CLASS']} {maker()}",
        torch.__version__.split("+")[0],
    )
    found = trained.checks["weights"]
    expected = STORED.get(kind, {}).get(version)
    if expected is None:
        pytest.skip(f"weights.json knows nothing of {kind}, torch {version}; it would be {found}")
    assert found == expected


def test_weights_of_this_hardware_class(nanogpt: Bundled, train_many: TrainMany) -> None:
    kind = hardware_class(read_cpu())
    check(train_many, nanogpt.files, {"ASSAY_HARDWARE_CLASS": kind})


def test_weights_in_float32(nanogpt: Bundled, train_many: TrainMany) -> None:
    if "avx2" not in read_cpu().flags:
        missing("this processor has no AVX2")
    check(train_many, nanogpt.files, PLAIN)
