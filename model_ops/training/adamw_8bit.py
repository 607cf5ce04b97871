"""AdamW with its moments in 8 bits: bitsandbytes' optimizer with what a run here needs. Importing this needs bitsandbytes.

A group with in_8_bits=False keeps 32 bits. bitsandbytes has a registry for that, but one for the whole process, by the
addresses of parameters. Its count of steps may come back from a checkpoint as a tensor, which its kernels do not take.
"""

from __future__ import annotations

from typing import Any

import bitsandbytes
from torch import Tensor


class AdamW8bit(bitsandbytes.optim.AdamW8bit):
    """See bitsandbytes.optim.AdamW8bit."""

    def get_config(self, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
        config = super().get_config(gindex, pindex, group)
        return config if group["in_8_bits"] else {**config, "optim_bits": 32}

    def update_step(self, group: dict[str, Any], p: Tensor, gindex: int, pindex: int) -> None:
        self.state[p]["step"] = int(self.state[p]["step"])
        super().update_step(group, p, gindex, pindex)
