"""Whether CUDA starts for a program in the sandbox, tried once for each GPU.

A sandbox can hand out the right nodes and still keep CUDA from starting: by a file or a system
call that it does not have. Trainings would then fail one after the other, for no fault of theirs.
"""

import os
import subprocess
import sys
import tempfile
import uuid

from assay.sandbox.choose import gpu_problem, open_sandbox
from assay.sandbox.interface import Limits, SandboxError, SandboxSettings, SandboxSpec

_TRIAL = """
import ctypes, sys
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit(str(error))
def ask(call, *arguments):
    code = call(*arguments)
    if code:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(name))
        sys.exit(f"error {code}, {(name.value or b'').decode()}")
ask(cuda.cuInit, 0)
count = ctypes.c_int()
ask(cuda.cuDeviceGetCount, ctypes.byref(count))
sys.exit(None if count.value == 1 else f"it finds {count.value} devices")
"""
"""Asks the driver's library alone, in less than a second; makes no context on the device."""
_LIMITS = Limits(60.0, 8 << 30, processes=256, open_files=1024, file_bytes=1 << 20)


class CudaTrial:
    """Says why a GPU cannot be used through the sandbox; what worked once is not tried again."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._worked: set[str] = set()

    def problem(self, gpu: str) -> str | None:
        """Why a program in the sandbox cannot use the GPU with this UUID, with a remedy, or None.

        None, too, where CUDA does not even start outside: then it is not for the sandbox.
        """
        problem = gpu_problem(self._settings, gpu)
        if problem is not None or gpu in self._worked or self._settings.name == "subprocess":
            return problem
        if _outside(gpu):
            try:
                said = self._inside(gpu)
            except (SandboxError, OSError) as error:
                said = str(error)
            if said is not None:
                return (
                    f"CUDA starts on this host, but not in a {self._settings.name} sandbox "
                    f"({said}); remedy: another ASSAY_WORKER_SANDBOX, and please report it"
                )
        self._worked.add(gpu)
        return None

    def _inside(self, gpu: str) -> str | None:
        sandbox = open_sandbox(self._settings)
        with tempfile.TemporaryFile() as words:
            spec = SandboxSpec(
                name=f"cuda-{uuid.uuid4().hex[:12]}",
                argv=(sandbox.python, "-I", "-S", "-c", _TRIAL),
                env={},
                mounts=(),
                cwd="/",
                limits=_LIMITS,
                stdout=words.fileno(),
                stderr=words.fileno(),
                gpus=(gpu,),
            )
            end = sandbox.start(spec).wait()
            words.seek(0)
            said = words.read().decode(errors="replace").strip()[-300:]
        if (end.reason, end.code) == ("exited", 0):
            return None
        return said or f"a program that starts it ended by {end.reason} ({end.code})"


def _outside(gpu: str) -> bool:
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRIAL],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": gpu},
            capture_output=True,
            timeout=_LIMITS.wall_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
