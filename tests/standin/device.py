"""The stand-in device as `torch.standin`. Loading it changes this process for good: it has an accelerator then."""

from __future__ import annotations

import importlib.util
import types
from pathlib import Path
from typing import Any

import torch

from tests.standin.build import NAME, built

DEVICE = "standin"


def load(folder: Path) -> Any:
    """Load the device, compiled in `folder`; return its counters (`stats`, `launches`, `waits`, `reset`)."""
    torch.utils.rename_privateuse1_backend(DEVICE)
    spec = importlib.util.spec_from_file_location(NAME, built(folder))
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    torch._register_device_module(DEVICE, _module(made))
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_storage=True)
    return made


def _module(made: Any) -> types.ModuleType:
    """What torch and the library ask of a device's module."""
    module = types.ModuleType(f"torch.{DEVICE}")
    generators = [made.default_generator(i) for i in range(made.device_count())]

    def index(device: Any = None) -> int:
        if device is None:
            return int(made.current_device())
        if isinstance(device, int):
            return device
        found = torch.device(device).index
        return int(made.current_device()) if found is None else found

    def manual_seed_all(seed: int) -> None:
        for generator in generators:
            generator.manual_seed(seed)

    vars(module).update(
        default_generators=generators,
        device_count=made.device_count,
        current_device=made.current_device,
        set_device=lambda device: made.set_device(index(device)),
        is_available=lambda: True,
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        manual_seed=lambda seed: generators[index()].manual_seed(seed),
        manual_seed_all=manual_seed_all,
        get_rng_state=lambda device=None: generators[index(device)].get_state(),
        set_rng_state=lambda state, device=None: generators[index(device)].set_state(state),
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        synchronize=lambda device=None: made.synchronize(),
        memory_allocated=lambda device=None: made.stats()["allocated"],
        max_memory_allocated=lambda device=None: made.stats()["peak"],
        reset_peak_memory_stats=lambda device=None: made.reset(),
        mem_get_info=lambda device=None: (2**30 - made.stats()["allocated"], 2**30),
        get_device_name=lambda device=None: "stand-in",
    )
    return module
