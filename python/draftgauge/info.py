"""What this build holds."""

from __future__ import annotations

from typing import Any

from draftgauge._door import core

__all__ = ["build_info"]


def build_info() -> dict[str, Any]:
    """Version, accelerator features, devices and kernel paths.

    Returns
    -------
    dict
        ``version``; ``features`` compiled in (``cuda``, ``metal``), none in the default wheel; ``devices`` that can be
        asked for; ``kernels``, the kernel paths that this CPU has, slowest first.

    Examples
    --------
    >>> import draftgauge as dg
    >>> "cpu" in dg.build_info()["devices"]
    True
    """
    version, features, kernels = core.build_facts()
    return {
        "version": version,
        "features": features,
        "devices": ["cpu", "candle-cpu", *features],
        "kernels": kernels,
    }
